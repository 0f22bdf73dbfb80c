"""The service: HTTP interface, storage, job execution and client. Needs ``pace[api]``."""
