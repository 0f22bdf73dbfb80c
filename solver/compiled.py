"""How hot loops are compiled: numba, cached on disk so that only a machine's first run pays.

Modules under ``pace.solver.kernels`` use this at import and are themselves imported where they are first
needed, because importing numba takes about as long as everything else together.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile `function` at its first call; plain Python stays reachable as ``py_func``."""
    try:
        return cast("Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder to cache in can be written
        return cast("Function", numba.njit(nogil=True)(function))
