"""How hot loops are compiled: numba, cached on disk so that only a machine's first run pays.

Modules under ``pace.solver.kernels`` use this at import and are themselves imported where they are first
needed, because importing numba takes about as long as everything else together.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile `function` at its first call; plain Python stays reachable as ``py_func``."""
    return _compile(function)


def compiled_in_place(function: Function) -> Function:
    """Compile `function`, which makes no array, into its callers, without counting references.

    State that is a named tuple of many arrays is counted and copied at each call otherwise, which takes
    several times as long as the work.
    """
    return _compile(function, _nrt=False, forceinline=True)


def _compile(function: Function, **options: Any) -> Function:
    try:
        return cast("Function", numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # no folder to cache in can be written
        return cast("Function", numba.njit(nogil=True, **options)(function))
