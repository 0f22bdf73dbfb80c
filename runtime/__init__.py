"""Optimizer wrappers that make a training job follow a schedule. Needs ``pace-scheduler[torch]``."""
