"""A schedule that comes after training has begun: asked for in the background, by rank 0 alone."""

import threading
from collections.abc import Callable

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0

# How often, in steps, ranks ask rank 0 whether a schedule has come: a broadcast of a few bytes.
STEPS_BETWEEN = 20


class LateSchedule:
    """Asks again and again, ever more rarely, from a thread of its own.

    Parameters
    ----------
    ask
        Returns a schedule's bytes, or none; never raises for a service that is away.
    """

    def __init__(self, ask: Callable[[], bytes]) -> None:
        self._ask = ask
        self._found = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace.late", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = FIRST_DELAY_S
        while not self._stop.wait(delay_s):
            self._found = self._ask()
            if self._found:
                return
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def poll(self) -> bytes:
        """Return the schedule's bytes, or nothing yet."""
        return self._found

    def close(self) -> None:
        """Stop asking; a question under way is left to end by itself."""
        self._stop.set()
