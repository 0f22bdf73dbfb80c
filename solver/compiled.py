"""How hot loops are compiled: by numba, with a cache on disk, so only the first run on a machine is slow.

Modules named ``kernels`` use this when they are imported. Import them inside the functions that need them:
importing numba takes about as long as importing everything else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

try:
    import numba
    from numba.core import event
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "PACE's solver needs numba: pip install 'pace-scheduler[solver]'", name=error.name
    ) from error

# Whether other processes find what this one has compiled.
is_kept = True

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile `function` at its first call; its attribute ``py_func`` is the original function."""
    return _compile(function)


def compiled_in_place(function: Function) -> Function:
    """Compile `function`, which must not create arrays, into its callers without counting references.

    Otherwise a named tuple of many arrays is copied and its references are counted at each call. That takes
    several times as long as the work itself.
    """
    return _compile(function, _nrt=False, forceinline=True)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Raise a RuntimeError in this context instead of compiling what the cache on disk does not have."""
    with event.install_listener("numba:compile", _Refusal()):
        yield


class _Refusal(event.Listener):
    def on_start(self, event: object) -> None:
        del event
        raise RuntimeError("not compiled yet")

    def on_end(self, event: object) -> None:
        """Nothing was begun."""


def _compile(function: Function, **options: Any) -> Function:
    global is_kept
    try:
        return cast("Function", numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # numba finds no writable cache folder
        is_kept = False
        return cast("Function", numba.njit(nogil=True, **options)(function))
