"""Chrome traces, predicted and measured: they open in Perfetto, side by side."""

from collections.abc import Iterable, Sequence
from typing import Any

MICROSECONDS = 1e6


class ChromeTrace:
    """A trace of one process; times are in seconds.

    Parameters
    ----------
    process
        The process's name.
    pid
        Its number: traces that are opened together need different ones.
    """

    def __init__(self, process: str, pid: int = 0) -> None:
        self._pid = pid
        self._events: list[dict[str, Any]] = []
        self._add("M", name="process_name", args={"name": process})

    def _add(self, phase: str, **fields: Any) -> None:
        self._events.append({"ph": phase, "pid": self._pid, **fields})

    def add_row(self, row: int, name: str) -> None:
        """Name a row; rows stand in order of their numbers."""
        self._add("M", tid=row, name="thread_name", args={"name": name})
        self._add("M", tid=row, name="thread_sort_index", args={"sort_index": row})

    def add_slice(
        self, row: int, name: str, start_s: float, end_s: float, arguments: dict[str, Any] | None = None
    ) -> None:
        """Add what ran on a row; slices of one row must not overlap."""
        duration = (end_s - start_s) * MICROSECONDS
        self._add("X", tid=row, name=name, ts=start_s * MICROSECONDS, dur=duration, args=arguments or {})

    def add_flow(self, number: int, name: str, steps: Sequence[tuple[int, float]]) -> None:
        """Add an arrow through two or more (row, moment), each inside a slice."""
        for at, (row, moment_s) in enumerate(steps):
            phase = "s" if at == 0 else "f" if at == len(steps) - 1 else "t"
            binding = {"bp": "e"} if at else {}
            fields = {"id": number, "name": name, "cat": "gradient", "ts": moment_s * MICROSECONDS}
            self._add(phase, tid=row, **fields, **binding)

    def add_backlog(self, changes: Iterable[tuple[float, int]]) -> None:
        """Add a counter of the bytes that are ready and not yet reduced, from (moment, change in bytes)."""
        waiting = 0
        # At one moment bytes become ready before they are reduced, as where an all-reduce costs nothing.
        for moment_s, change in sorted(changes, key=lambda item: (item[0], -item[1])):
            waiting += change
            self._add("C", name="bytes waiting", ts=moment_s * MICROSECONDS, args={"bytes": waiting})

    def document(self, **about: str) -> dict[str, Any]:
        """Return the trace as a document (JSON-ready); `about` says what it belongs to."""
        return {"traceEvents": self._events, "displayTimeUnit": "ms", "otherData": about}
