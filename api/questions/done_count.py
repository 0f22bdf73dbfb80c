"""How far an answer is, told now and then."""

import time
from collections.abc import Callable

_TELL_EVERY_S = 0.3


class DoneCount:
    """Counts what is done, and tells it now and then."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._told_at = time.monotonic()
        self.num_done = 0

    def __call__(self, num_more: int) -> None:
        """Count so many more."""
        self.num_done += num_more
        if time.monotonic() >= self._told_at + _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._tell(self.num_done)
