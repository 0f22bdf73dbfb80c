"""Loads modules and compiles functions for workers, once, in the process that forks them."""

import contextlib
import gc

import pace.api.workers.worker_process  # noqa: F401 - loaded, not used
from pace.api.workers.kernels import load_kernels

# A worker that cannot go without it tries again and tells its pool what went wrong.
with contextlib.suppress(Exception):
    load_kernels()

gc.freeze()  # a collection in a fork would copy every page that it looks at
