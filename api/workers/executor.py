"""What runs tasks: worker processes of this service, or a Dask cluster."""

from collections.abc import Callable
from typing import Any, Protocol

Progress = Callable[[int], None]


class Executor(Protocol):
    """Runs functions, such as ``answer_question``, with limits."""

    @property
    def size(self) -> int:
        """How many can run at once, now."""

    @property
    def num_alive(self) -> int:
        """How many places are there to work."""

    def start(self) -> None:
        """Get ready, in the background."""

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
        """Call a function and return what it returns; what is cancelled here is ended there.

        Parameters
        ----------
        gives_way
            Long work: where cores are short, whatever else this service does comes first.
        progress
            If given, the function gets a further argument, by which it tells how far it is; this is
            called with that, from any thread.

        Raises
        ------
        WorkerDied
            If what worked on it ended for a reason of its own.
        LimitExceeded
            If it took too long or too much memory.
        PaceError
            What the function raised; WorkerFailed for what nobody foresaw.
        """
