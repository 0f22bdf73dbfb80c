"""Polls the service in the background, on rank 0, for a schedule that arrives during training."""

import threading
from collections.abc import Callable

from pace.errors import AccessDenied, InvalidOptions, InvalidProfile
from pace.runtime.event_log import log

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0

# How often, in steps, ranks exchange news (a few bytes).
STEPS_BETWEEN = 20

# The same right after a profile was submitted, when a schedule is likely to arrive; and for how many steps.
STEPS_BETWEEN_SOON = 2
STEPS_SOON = 60


class LateSchedule:
    """Polls in its own thread, at growing intervals; can also submit a profile.

    Parameters
    ----------
    ask
        Returns a schedule's bytes, or empty bytes. Must not raise if the service cannot be reached. After
        `AccessDenied` the service is not asked again.
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
                # Another job of this name may have submitted a profile first, so ask before submitting.
                self._found = self._ask() or (b"" if submit is None else self._hand_in(submit))
            except AccessDenied as error:
                log.warning("pace.access_denied", reason=str(error))
                return
            except Exception as error:  # any error may be gone when the service is asked again
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
        """From now on, call `submit` when asking finds no schedule; the first time at once.

        Parameters
        ----------
        submit
            Returns a schedule's bytes, or empty bytes to be called again. After `InvalidProfile` or
            `InvalidOptions` it is not called again.
        """
        self._submit = submit
        self._wake.set()

    def poll(self) -> bytes:
        """Return the schedule's bytes; empty while there is none."""
        return self._found

    def close(self) -> None:
        """Stop asking; a request in progress is left to end by itself."""
        self._closed = True
        self._wake.set()
