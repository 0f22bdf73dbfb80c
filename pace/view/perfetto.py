"""A window as a Chrome trace, which opens in Perfetto: predicted, simulated, measured or of a transfer plan.

Rows for compute and for each link, arrows from the op that completes a group through its transfers to the
first op that waits for it, and a counter of the bytes that are ready and not yet reduced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.view.window import Cargo, Window, lay_out

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


def chrome_trace(profile: Profile, schedule: Schedule) -> dict[str, Any]:
    """Return the window that a schedule predicts as a Chrome trace document (JSON-ready)."""
    window = lay_out(profile, schedule, f"predicted: {profile.name}")
    return window_trace(window, profile, profile_sha256=profile.sha256)


def window_trace(
    window: Window, profile: Profile | None = None, *, pid: int = 0, carries: str = "gradients", **about: str
) -> dict[str, Any]:
    """Return a window as a Chrome trace document (JSON-ready).

    Parameters
    ----------
    profile
        Whose ops it shows, if any.
    pid
        Number of the process: traces that are opened together need different ones.
    carries
        What transfers carry.
    about
        What the trace belongs to.
    """
    trace = ChromeTrace(window.name, pid)
    link_names, link_row = window.link_rows
    for row, name in enumerate([*window.lanes, *link_names]):
        trace.add_row(row, name)
    times = window.times
    for number, op in enumerate(profile.ops if profile else ()):
        trace.add_slice(
            window.op_lanes[number], op.name, float(times.starts_s[number]), float(times.ends_s[number])
        )
    first = len(window.lanes)
    ends = _ends(profile, window)
    chains: dict[int, list[int]] = {}
    for number, transfer in enumerate(window.transfers):
        cargo = window.cargo[transfer.cargo]
        details = {
            "group": transfer.cargo,
            "priority": transfer.priority,
            "offset_bytes": transfer.offset_bytes,
            "size_bytes": transfer.size_bytes,
            carries: list(cargo.gradients),
            "critical": cargo.critical,
        }
        trace.add_slice(first + link_row[number], cargo.name, transfer.start_s, transfer.end_s, details)
        if transfer.follows is None:
            chains[number] = [number]
        else:
            chains[transfer.follows].append(number)
    for at, chain in enumerate(chains.values()):
        carried = window.transfers[chain[0]].cargo
        steps = [(first + link_row[n], window.transfers[n].start_s) for n in chain]
        producer, consumer = ends.producers[carried], ends.consumers[carried]
        if producer is not None:
            steps.insert(0, (window.op_lanes[producer], float(times.ends_s[producer])))
        if consumer is not None:
            steps.append((window.op_lanes[consumer], float(times.starts_s[consumer])))
        if len(steps) > 1:
            trace.add_flow(at, window.cargo[carried].name, steps)
    trace.add_backlog(
        [
            *((cargo.ready_s, cargo.size_bytes) for cargo in window.cargo if cargo.ready_s is not None),
            *(
                (window.transfers[chain[-1]].end_s, -window.transfers[chain[-1]].size_bytes)
                for chain in chains.values()
                if window.cargo[window.transfers[chain[0]].cargo].ready_s is not None
            ),
        ]
    )
    return trace.document(**about)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """For every cargo, the op that completes it and the first op that waits for it, if there is one."""

    producers: list[int | None]
    consumers: list[int | None]


def _ends(profile: Profile | None, window: Window) -> _Ends:
    if profile is None:
        nothing: list[int | None] = [None] * len(window.cargo)
        return _Ends(producers=nothing, consumers=nothing)
    times = window.times
    producer = {
        gradient.name: int(op) for gradient, op in zip(profile.gradients, profile.producers, strict=True)
    }
    consumer: dict[str, int] = {}
    for number, op in enumerate(profile.ops):
        for name in op.waits_for:
            if name not in consumer or times.starts_s[number] < times.starts_s[consumer[name]]:
                consumer[name] = number

    def last_producer(cargo: Cargo) -> int | None:
        if cargo.ready_s is None:
            return None
        return max(
            (producer[name] for name in cargo.gradients), key=lambda op: times.ends_s[op], default=None
        )

    def first_consumer(cargo: Cargo) -> int | None:
        waiting = (consumer[name] for name in cargo.gradients if name in consumer and cargo.delivers)
        return min(waiting, key=lambda op: times.starts_s[op], default=None)

    return _Ends(
        producers=[last_producer(cargo) for cargo in window.cargo],
        consumers=[first_consumer(cargo) for cargo in window.cargo],
    )
