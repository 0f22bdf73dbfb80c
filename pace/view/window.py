"""A window laid out in time: of a schedule, of a simulated policy, measured, or of a transfer plan.

Everything that shows a window starts from ``Window``: charts, traces for Perfetto, the page and reports.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.simulation import SimulatedWindow, make_policy, run_policy
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compute_clock import ComputeClock

# Transfers that overlap by less, by rounding, follow one another.
SAME_S = 1e-9

Phase = Literal["backward", "forward", "collective", "compute", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """When every op of the profile starts and ends, in seconds from the window's start."""

    starts_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    ends_s: FloatArray = field(default_factory=lambda: np.zeros(0))


def op_times_after(
    profile: Profile, arrival: Mapping[str, float], clock: ComputeClock | None = None
) -> OpTimes:
    """Run the window with every gradient back at a given time, and ops slowed down as the clock says."""
    clock = clock or ComputeClock(1.0)
    back = {name: float(clock.compute_s(end)) for name, end in arrival.items()}
    starts, ends = np.zeros(len(profile.ops)), np.zeros(len(profile.ops))
    for number in profile.graph.order:
        op = profile.ops[number]
        before = [ends[previous] for previous in profile.graph.predecessors[number]]
        starts[number] = max([0.0, *before, *(back[name] for name in op.waits_for)])
        ends[number] = starts[number] + op.duration_s
    return OpTimes(starts_s=clock.wall_s(starts), ends_s=clock.wall_s(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Rows of a chart: their names, and the row of every op."""

    names: list[str]
    of_op: list[int]


def lanes_of(profile: Profile, times: OpTimes) -> Lanes:
    """Give each stream a lane, and ops without a stream as few lanes as their overlaps allow."""
    names = list(dict.fromkeys(op.stream for op in profile.ops if op.stream is not None))
    streams = {name: lane for lane, name in enumerate(names)}
    of_op = [0] * len(profile.ops)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for number in np.argsort(times.starts_s, kind="stable"):
        stream = profile.ops[number].stream
        if stream is not None:
            of_op[number] = streams[stream]
            continue
        while busy and busy[0][0] <= times.starts_s[number]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            names.append(f"ops {len(names) - len(streams)}")
            free.append(len(names) - 1)
        of_op[number] = heapq.heappop(free)
        heapq.heappush(busy, (float(times.ends_s[number]), of_op[number]))
    return Lanes(names=names, of_op=of_op)


def phases_of(profile: Profile) -> tuple[Phase, ...]:
    """Return the phase of every op: forward ops wait for gradients, or follow one that does."""
    waits = [bool(op.waits_for) for op in profile.ops]
    for number in profile.graph.order:
        waits[number] = waits[number] or any(waits[before] for before in profile.graph.predecessors[number])
    return tuple(
        "collective" if op.kind == "communication" else "forward" if waiting else "backward"
        for op, waiting in zip(profile.ops, waits, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cargo:
    """What one or several transfers carry.

    Attributes
    ----------
    gradients
        Their names; of a transfer plan, those of updates.
    ready_s
        When all of it is there to be sent, in wall time; None for what is not computed in the window, as the
        shards that an all-gather sends.
    critical
        Whether the schedule's proof names it.
    delivers
        Whether compute waits for it.
    label
        What charts write on its transfers; None for its number.
    """

    name: str
    gradients: tuple[str, ...]
    size_bytes: int
    ready_s: float | None = None
    critical: bool = False
    delivers: bool = True
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverTime:
    """Memory in use, which changes at moments, and the budget, if there is one.

    Attributes
    ----------
    starts_s, in_use_bytes : arrays of one shape
        From each moment on, so many bytes are in use.
    """

    starts_s: FloatArray
    in_use_bytes: IntArray
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTransfer:
    """One transfer: what it carries and on which link, by their numbers, and when, in seconds.

    Attributes
    ----------
    offset_bytes, priority
        Values of the schedule; None for simulated policies.
    follows
        Number of the transfer whose bytes it brings back: a pull follows its push.
    """

    link: int
    cargo: int
    size_bytes: int
    start_s: float
    end_s: float
    offset_bytes: int | None = None
    priority: int | None = None
    follows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window in time.

    Attributes
    ----------
    lanes, op_lanes, op_phases
        Names of the rows of ops, and for every op its row and phase.
    links
        Names of the rows of transfers.
    barrier
        Whether forward ops wait for all gradients.
    begins_with
        What time is counted from.
    memory
        Memory in use over time, for a graph of sharded training.
    """

    name: str
    iteration_s: float
    barrier: bool
    links: tuple[str, ...]
    cargo: tuple[Cargo, ...]
    transfers: tuple[WindowTransfer, ...]
    times: OpTimes = field(default_factory=OpTimes)
    lanes: tuple[str, ...] = ()
    op_lanes: tuple[int, ...] = ()
    op_phases: tuple[Phase, ...] = ()
    begins_with: str = "the start of the backward pass"
    memory: MemoryOverTime | None = None

    @property
    def link_rows(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names of the rows of links, and the row of each transfer: slices of a row must not overlap.

        A link that carries several transfers at once has a row for each.
        """
        names, row_of = list[str](), [0] * len(self.transfers)
        for link, name in enumerate(self.links):
            on_it = (number for number, each in enumerate(self.transfers) if each.link == link)
            free_at: list[float] = []
            for number in sorted(on_it, key=lambda number: self.transfers[number].start_s):
                start_s, end_s = self.transfers[number].start_s, self.transfers[number].end_s
                lane = next(
                    (at for at, free_s in enumerate(free_at) if free_s <= start_s + SAME_S), len(free_at)
                )
                free_at[lane : lane + 1] = [end_s]
                row_of[number] = len(names) + lane
            names += [name, *(f"{name} ({lane})" for lane in range(2, len(free_at) + 1))]
        return tuple(names), tuple(row_of)


def lay_out(profile: Profile, schedule: Schedule, name: str = "schedule") -> Window:
    """Lay out the window that a schedule predicts."""
    norm = None if schedule.sharding is None else schedule.sharding.norm
    moved = [(segment.start_s, segment.end_s) for segment in schedule.transfers]
    if norm is not None:
        moved.append((norm.start_s, norm.end_s))
    # Of pushes and pulls, which use two links at once, no slow-down is modeled.
    slowdown = 1.0 if schedule.exchange == "servers" else profile.compute_slowdown
    clock = ComputeClock.observed(slowdown, moved)
    cargo = _groups(schedule, clock)
    transfers = _transfers(schedule)
    # A gradient without bytes may be in no group: it is there when its producer ends.
    arrival = {
        gradient.name: float(clock.wall_s(ready))
        for gradient, ready in zip(profile.gradients, profile.timing.ready_s, strict=True)
    }
    for segment in schedule.transfers:
        if segment.op not in ("reduce-scatter", "push"):
            for gradient_name in schedule.groups[segment.group].tensors:
                arrival[gradient_name] = max(arrival[gradient_name], segment.end_s)
    if norm is not None:
        cargo.append(Cargo(name="global norm", gradients=(), size_bytes=0, delivers=False))
        transfers.append(
            WindowTransfer(link=0, cargo=len(cargo) - 1, size_bytes=0, start_s=norm.start_s, end_s=norm.end_s)
        )
    behind_norm = profile.update == "global-norm" and schedule.exchange == "allreduce"
    return _window(
        profile,
        name,
        schedule.predicted.iteration_s,
        arrival,
        _link_names(schedule),
        cargo,
        transfers,
        barrier=schedule.framework is not None or behind_norm,
        clock=clock,
    )


def lay_out_policy(profile: Profile, name: str, /, **knobs: Any) -> Window:
    """Simulate one window under a policy and lay it out; raises InvalidOptions if no policy has this name."""
    window = run_policy(profile, make_policy(name, **knobs)).windows[0]
    arrival = {
        gradient.name: float(arrived)
        for gradient, arrived in zip(profile.gradients, window.arrival_s, strict=True)
    }
    cargo, of_transfer = _simulated_cargo(profile, window)
    sizes, starts, ends = window.traffic.size_bytes, window.starts_s, window.ends_s
    transfers = [
        WindowTransfer(
            link=0,
            cargo=of_transfer[number],
            size_bytes=int(sizes[number]),
            start_s=float(starts[number]),
            end_s=float(ends[number]),
        )
        for number in range(len(starts))
    ]
    return _window(
        profile,
        name,
        window.iteration_s,
        arrival,
        ("network",),
        cargo,
        transfers,
        barrier=window.barrier,
        clock=window.clock,
    )


def _groups(schedule: Schedule, clock: ComputeClock) -> list[Cargo]:
    critical = {number for proof in schedule.proofs for number in proof.set}
    bound = schedule.bound
    if schedule.exchange == "servers" and bound is not None:
        critical = {
            number
            for number, group in enumerate(schedule.groups)
            if group.ready_s >= bound.min_ready_s and group.tail_s >= bound.min_tail_s
        }
    return [
        Cargo(
            name=f"group {number}" if group.op is None else f"{group.op} {number}",
            gradients=group.tensors,
            size_bytes=group.size_bytes,
            ready_s=None if group.op == "all-gather" else float(clock.wall_s(group.ready_s)),
            critical=number in critical,
            delivers=group.op != "reduce-scatter",
        )
        for number, group in enumerate(schedule.groups)
    ]


def _transfers(schedule: Schedule) -> list[WindowTransfer]:
    return [
        WindowTransfer(
            link=segment.link,
            cargo=segment.group,
            size_bytes=segment.size_bytes,
            start_s=segment.start_s,
            end_s=segment.end_s,
            offset_bytes=segment.offset_bytes,
            priority=segment.priority,
            follows=number - 1 if segment.op == "pull" else None,
        )
        for number, segment in enumerate(schedule.transfers)
    ]


def _link_names(schedule: Schedule) -> tuple[str, ...]:
    ways = {"up": "push to server", "down": "pull from server"}
    parts = (name.partition(" ") for name in schedule.links)
    return tuple(f"{ways[way]} {server}" if server else way for way, _, server in parts)


def _simulated_cargo(profile: Profile, window: SimulatedWindow) -> tuple[list[Cargo], list[int]]:
    """Say for every simulated transfer which gradients it carries; equal loads are one."""
    loads: list[list[int]] = [[] for _ in range(len(window.starts_s))]
    for gradient, carriers in enumerate(window.traffic.carriers):
        for transfer in carriers.tolist():
            loads[transfer].append(gradient)
    known: dict[tuple[int, ...], int] = {}
    of_transfer = [known.setdefault(tuple(load), len(known)) for load in loads]
    cargo = [
        Cargo(
            name=_label(profile, load),
            gradients=tuple(profile.gradients[number].name for number in load),
            size_bytes=sum(profile.gradients[number].size_bytes for number in load),
        )
        for load in known
    ]
    return cargo, of_transfer


def _label(profile: Profile, load: Sequence[int]) -> str:
    if not load:
        return "no gradient of its own"
    first = profile.gradients[load[0]].name
    return first if len(load) == 1 else f"{first} and {len(load) - 1} more"


def _window(
    profile: Profile,
    name: str,
    iteration_s: float,
    arrival: Mapping[str, float],
    links: tuple[str, ...],
    cargo: Sequence[Cargo],
    transfers: Sequence[WindowTransfer],
    *,
    barrier: bool,
    clock: ComputeClock,
) -> Window:
    if barrier:
        arrival = dict.fromkeys(arrival, max(arrival.values(), default=0.0))
    times = op_times_after(profile, arrival, clock)
    lanes = lanes_of(profile, times)
    return Window(
        name=name,
        iteration_s=float(iteration_s),
        barrier=barrier,
        times=times,
        lanes=tuple(lanes.names),
        op_lanes=tuple(int(lane) for lane in lanes.of_op),
        op_phases=phases_of(profile),
        links=links,
        cargo=tuple(cargo),
        transfers=tuple(transfers),
    )
