"""Optimizer wrappers that make a training job follow a schedule. Needs ``pace-scheduler[torch]``."""

from pace.lazy_names import WRAPPERS, loads_names

__getattr__ = loads_names(__name__, {}, WRAPPERS)
