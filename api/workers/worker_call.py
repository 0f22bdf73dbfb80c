"""One call of a function in a worker process."""

import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

from pace.api.workers.executor import Progress


class WorkerCall:
    """A call of a function in a worker process, which another thread may cancel."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        progress: Progress | None,
        gives_way: bool = False,
    ) -> None:
        self.request = (function, arguments, progress is not None, gives_way)
        self.timeout_s = timeout_s
        self.progress = progress
        self.cancelled = False
        self._process: ForkServerProcess | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Kill the process of this call, now or when the call starts."""
        with self._lock:
            self.cancelled = True
            if self._process is not None:
                self._process.kill()

    def begin(self, process: ForkServerProcess) -> None:
        """Set the process that runs the call."""
        with self._lock:
            self._process = process
            if self.cancelled:
                process.kill()

    def end(self) -> bool:
        """Clear the process of the call; return whether it was killed."""
        with self._lock:
            self._process = None
            return self.cancelled
