"""Limits on rates: counts what callers do in windows of a fixed length."""

import time
from collections.abc import Callable

from limits import parse

# So many windows are kept before those that have ended are looked for.
_MANY = 1000


class RateWindows:
    """Counts events by name. A name's window begins with its first event.

    Nothing here waits: it is asked for each request.

    Parameters
    ----------
    rate
        Largest rate of one name, such as "6000/minute".
    now
        A clock, in seconds.

    Attributes
    ----------
    most
        Largest number of events in a window.
    """

    def __init__(self, rate: str, now: Callable[[], float] = time.monotonic) -> None:
        limit = parse(rate)
        self.most: int = limit.amount
        self._text = str(limit)
        self._window_s: float = limit.get_expiry()
        self._now = now
        # When each window ends, and how many events it has.
        self._windows: dict[str, tuple[float, int]] = {}
        self._many = _MANY

    def __str__(self) -> str:
        return self._text

    def count(self, name: str) -> int:
        """Count an event; return the number of events in the window, this one included."""
        ends_s, count = self._window(name)
        if not count and len(self._windows) >= self._many:
            self._forget()
        self._windows[name] = (ends_s, count + 1)
        return count + 1

    def is_full(self, name: str) -> bool:
        """Whether one more event would be beyond the rate."""
        return self._window(name)[1] >= self.most

    def reset_s(self, name: str) -> int:
        """Return the whole seconds until the window ends, at least one."""
        return max(1, round(self._window(name)[0] - self._now()))

    def _window(self, name: str) -> tuple[float, int]:
        window = self._windows.get(name)
        now_s = self._now()
        return window if window is not None and now_s < window[0] else (now_s + self._window_s, 0)

    def _forget(self) -> None:
        now_s = self._now()
        self._windows = {name: window for name, window in self._windows.items() if now_s < window[0]}
        # Looked through again only after as many more, so that each event costs the same on average.
        self._many = max(_MANY, 2 * len(self._windows))
