"""The service: HTTP interface, tasks, workers and storage. Needs ``pace-scheduler[api]``."""
