"""Loads modules and compiles functions for workers, once, in the process that forks them."""

import contextlib

import pace.api.workers.worker_process  # noqa: F401 - loaded, not used
from pace.api.workers.kernels import load_kernels
from pace.gc_pause import freeze_what_is_loaded

# A worker that cannot go without it tries again and tells its pool what went wrong.
with contextlib.suppress(Exception):
    load_kernels()

freeze_what_is_loaded()
