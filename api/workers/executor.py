"""The interface of executors: worker processes of this service, or a Dask cluster."""

from collections.abc import Callable
from typing import Any, Protocol

Progress = Callable[[int], None]


class Executor(Protocol):
    """Runs functions, such as ``answer_question``, with limits."""

    @property
    def size(self) -> int:
        """Number of calls that can run at once."""

    @property
    def num_alive(self) -> int:
        """Number of places that work."""

    def start(self) -> None:
        """Start in the background."""

    def close(self) -> None:
        """End everything at once."""

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        progress: Progress | None = None,
        gives_way: bool = False,
    ) -> Any:
        """Call a function and return its result; a cancelled call is ended.

        Parameters
        ----------
        gives_way
            Whether the call is long work with a lower priority than everything else in the service.
        progress
            If given, the function gets one more argument: a function that it calls with its progress.
            `progress` is then called with it, from any thread.

        Raises
        ------
        WorkerDied
            If the worker process ended unexpectedly.
        LimitExceeded
            If the call exceeds its time or memory.
        PaceError
            The function's error; WorkerFailed for unexpected errors.
        """
