"""A time limit for calls that have none of their own and cannot be interrupted."""

from collections.abc import Callable
from typing import TypeVar

from pace.runtime.transports.torch_threads import torch_thread

T = TypeVar("T")


def call_within(timeout_s: float, call: Callable[[], T], *, name: str) -> T:
    """Return what `call` returns; it runs in a daemon thread, which is left behind when it takes too long.

    Raises
    ------
    TimeoutError
        When it did not end in time. What it raises itself is raised here.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised in the calling thread
            errors.append(error)

    thread = torch_thread(run, name=name)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no end within {timeout_s:g} s")
    return results[0]
