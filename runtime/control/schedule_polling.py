"""A schedule that comes after training has begun: sought in the background, by rank 0 alone."""

import threading
from collections.abc import Callable

from pace.errors import InvalidOptions, InvalidProfile
from pace.runtime.event_log import log

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0

# How often, in steps, ranks tell one another what is new: a few bytes.
STEPS_BETWEEN = 20

# Right after a profile was handed in, when a schedule is likely to come: how often, and for how many steps.
STEPS_BETWEEN_SOON = 2
STEPS_SOON = 60


class LateSchedule:
    """Asks again and again, ever more rarely, from a thread of its own; later hands in a profile.

    Parameters
    ----------
    ask
        Returns a schedule's bytes, or none; never raises for a service that is away.
    """

    def __init__(self, ask: Callable[[], bytes]) -> None:
        self._ask = ask
        self._submit: Callable[[], bytes] | None = None
        self._found = b""
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pace.late", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            if self._wake.wait(delay_s):
                self._wake.clear()
                delay_s = FIRST_DELAY_S / 2
            if self._closed:
                return
            submit = self._submit
            try:
                # Another job of this name may have handed in a profile first: nothing is solved twice.
                self._found = self._ask() or (b"" if submit is None else self._hand_in(submit))
            except Exception as error:  # whatever it is, it may be gone when the service is asked again
                log.warning("pace.schedule_request_failed", reason=f"{type(error).__name__}: {error}")
            if self._found:
                return
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _hand_in(self, submit: Callable[[], bytes]) -> bytes:
        try:
            return submit()
        except (InvalidProfile, InvalidOptions) as error:
            log.warning("pace.profile_refused", reason=str(error))
            self._submit = None
            return b""

    def hand_in(self, submit: Callable[[], bytes]) -> None:
        """From now on, and at once, have `submit` get a schedule where asking finds none.

        Parameters
        ----------
        submit
            Returns a schedule's bytes, or none to be called again; `InvalidProfile` and `InvalidOptions`
            say that trying again is no use.
        """
        self._submit = submit
        self._wake.set()

    def poll(self) -> bytes:
        """Return the schedule's bytes, or nothing yet."""
        return self._found

    def close(self) -> None:
        """Stop asking; a question under way is left to end by itself."""
        self._closed = True
        self._wake.set()
