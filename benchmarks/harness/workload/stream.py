"""An accelerator's compute stream, emulated by sleeping: ops one by one, as long as the profile says."""

import time


class Stream:
    """Runs ops by sleeping until their ends.

    Ends are absolute: an op starts where the one before it ended, so that late timers and the host's own
    work between ops do not add up, as on a device whose queue is filled ahead of time. A host that is late by
    more than `slack_s` keeps the stream waiting, as real dependencies do (a gradient that has not arrived).
    What an op does on the CPU is part of its time.

    Attributes
    ----------
    slack_s
        How far ahead of the stream the host is taken to be, in seconds. Every wait costs at most so much
        less than it should, for every contender alike.
    record
        Once set to a list, (op, start, end) of every op are added, in seconds of ``time.perf_counter``.
    """

    def __init__(self, slack_s: float = 1e-3) -> None:
        self.slack_s = slack_s
        self.record: list[tuple[str, float, float]] | None = None
        self._free_s = time.perf_counter()
        self._op = ""

    def begin(self) -> float:
        """Say that the host issues the next op now; returns when the stream starts it."""
        return max(self._free_s, time.perf_counter() - self.slack_s)

    def end(self, op: str, started_s: float, duration_s: float) -> None:
        """Wait until the op that started then has run for `duration_s`."""
        self._free_s = started_s + duration_s
        if self.record is not None:
            self.record.append((op, started_s, self._free_s))
        left = self._free_s - time.perf_counter()
        if left > 0:
            time.sleep(left)
