"""Windows laid out in time as plain arrays, for charts: of a schedule of any kind, and of simulated policies.

Op times and lanes are those of ``pace.view.timeline``; nothing is drawn here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pace.documents.any_schedule import AnySchedule
from pace.documents.profile import Profile
from pace.documents.push_pull_schedule import PushPullSchedule
from pace.documents.schedule import Schedule
from pace.documents.sharded_schedule import ShardedSchedule
from pace.simulation import SimulatedWindow, make_policy, simulate
from pace.solver.compute_clock import ComputeClock
from pace.view.timeline import OpTimes, lanes_of, op_times, op_times_after

Phase = Literal["backward", "forward", "collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What one or several transfers carry; `critical` if the schedule's certificate names it."""

    name: str
    gradients: tuple[str, ...]
    size_bytes: int
    critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """One transfer: what it carries and on which link, by their numbers, and when, in seconds."""

    link: int
    carried: int
    size_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutWindow:
    """One window in time.

    Attributes
    ----------
    lanes, op_lanes
        Names of the rows of ops, and for every op its row.
    links
        Names of the rows of transfers.
    barrier
        Whether forward ops wait for all gradients.
    """

    name: str
    iteration_s: float
    barrier: bool
    times: OpTimes
    lanes: tuple[str, ...]
    op_lanes: tuple[int, ...]
    links: tuple[str, ...]
    carried: tuple[Carried, ...]
    transfers: tuple[Transferred, ...]


def lay_out_schedule(profile: Profile, schedule: AnySchedule, name: str = "schedule") -> LaidOutWindow:
    """Lay out the window that a schedule predicts."""
    match schedule:
        case Schedule():
            return _all_reduces(profile, schedule, name)
        case PushPullSchedule():
            return _pushes_and_pulls(profile, schedule, name)
        case ShardedSchedule():
            return _halves(profile, schedule, name)


def lay_out_policy(profile: Profile, name: str) -> LaidOutWindow:
    """Simulate one window under a policy and lay it out; raises InvalidOptions for names of none."""
    window = simulate(profile, make_policy(name)).windows[0]
    arrival = {
        gradient.name: float(arrived)
        for gradient, arrived in zip(profile.gradients, window.arrival_s, strict=True)
    }
    carried, of_transfer = _cargo(profile, window)
    sizes, starts, ends = window.traffic.size_bytes, window.starts_s, window.ends_s
    transfers = [
        Transferred(
            link=0,
            carried=of_transfer[number],
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
        carried,
        transfers,
        barrier=window.barrier,
        clock=window.clock,
    )


def phases_of(profile: Profile) -> tuple[Phase, ...]:
    """Return the phase of every op: forward ops wait for gradients, or follow one that does."""
    waits = [bool(op.waits_for) for op in profile.ops]
    for number in profile.graph.order:
        waits[number] = waits[number] or any(waits[before] for before in profile.graph.predecessors[number])
    return tuple(
        "collective" if op.kind == "communication" else "forward" if waiting else "backward"
        for op, waiting in zip(profile.ops, waits, strict=True)
    )


def _all_reduces(profile: Profile, schedule: Schedule, name: str) -> LaidOutWindow:
    critical = set(schedule.certificate.groups)
    carried = [
        Carried(
            name=f"group {number}",
            gradients=group.gradients,
            size_bytes=group.size_bytes,
            critical=number in critical,
        )
        for number, group in enumerate(schedule.groups)
    ]
    transfers = [
        Transferred(
            link=0,
            carried=segment.group,
            size_bytes=segment.size_bytes,
            start_s=segment.start_s,
            end_s=segment.end_s,
        )
        for segment in schedule.segments
    ]
    barrier = schedule.target != "pace" or profile.update == "global-norm"
    times = op_times(profile, schedule)
    return _laid_out(
        profile,
        name,
        schedule.predicted.iteration_s,
        times,
        ("network",),
        carried,
        transfers,
        barrier=barrier,
    )


def _pushes_and_pulls(profile: Profile, schedule: PushPullSchedule, name: str) -> LaidOutWindow:
    servers = range(schedule.cluster.exchange.servers)
    links = tuple(f"{way} server {server}" for server in servers for way in ("push to", "pull from"))
    back_s = [group.ready_s for group in schedule.groups]
    transfers = []
    for segment in schedule.segments:
        back_s[segment.group] = max(back_s[segment.group], segment.pull_end_s)
        for way, start_s, end_s in (
            (0, segment.push_start_s, segment.push_end_s),
            (1, segment.pull_start_s, segment.pull_end_s),
        ):
            transfers.append(
                Transferred(
                    link=2 * segment.link + way,
                    carried=segment.group,
                    size_bytes=segment.size_bytes,
                    start_s=start_s,
                    end_s=end_s,
                )
            )
    carried = [
        Carried(
            name=f"group {number}",
            gradients=group.gradients,
            size_bytes=group.size_bytes,
            critical=group.ready_s >= schedule.bound.min_ready_s
            and group.tail_s >= schedule.bound.min_tail_s,
        )
        for number, group in enumerate(schedule.groups)
    ]
    arrival = {
        gradient: back_s[number]
        for number, group in enumerate(schedule.groups)
        for gradient in group.gradients
    }
    return _window(
        profile,
        name,
        schedule.predicted.iteration_s,
        arrival,
        links,
        carried,
        transfers,
        barrier=False,
    )


def _halves(profile: Profile, schedule: ShardedSchedule, name: str) -> LaidOutWindow:
    critical = {
        "reduce-scatter": set(schedule.certificate.reduce_scatters),
        "all-gather": set(schedule.certificate.all_gathers),
    }
    first = {"reduce-scatter": 0, "all-gather": len(schedule.reduce_scatters)}
    carried = [
        Carried(
            name=f"{half} {number}",
            gradients=tuple(name for shard in call.shards for name in schedule.shards[shard].gradients),
            size_bytes=call.size_bytes,
            critical=number in critical[half],
        )
        for half, calls in schedule.calls.items()
        for number, call in enumerate(calls)
    ]
    moved = [(segment.start_s, segment.end_s) for segment in schedule.segments]
    if schedule.norm is not None:
        moved.append((schedule.norm.start_s, schedule.norm.end_s))
    clock = ComputeClock.observed(profile.compute_slowdown, moved)
    # A gradient without bytes is in no call: it is there when its producer ends.
    arrival = {
        gradient.name: float(clock.wall_s(ready))
        for gradient, ready in zip(profile.gradients, profile.timing.ready_s, strict=True)
    }
    transfers = []
    for segment in schedule.segments:
        call = schedule.calls[segment.half][segment.call]
        transfers.append(
            Transferred(
                link=0,
                carried=first[segment.half] + segment.call,
                size_bytes=segment.num_columns * schedule.column_bytes_of(call),
                start_s=segment.start_s,
                end_s=segment.end_s,
            )
        )
        if segment.half == "all-gather":
            for gradient_name in carried[first[segment.half] + segment.call].gradients:
                arrival[gradient_name] = max(arrival[gradient_name], segment.end_s)
    if schedule.norm is not None:
        carried.append(Carried(name="global norm", gradients=(), size_bytes=0))
        transfers.append(
            Transferred(
                link=0,
                carried=len(carried) - 1,
                size_bytes=0,
                start_s=schedule.norm.start_s,
                end_s=schedule.norm.end_s,
            )
        )
    return _window(
        profile,
        name,
        schedule.predicted.iteration_s,
        arrival,
        ("network",),
        carried,
        transfers,
        barrier=False,
        clock=clock,
    )


def _cargo(profile: Profile, window: SimulatedWindow) -> tuple[list[Carried], list[int]]:
    """Say for every simulated transfer which gradients it carries; equal loads are one."""
    loads: list[list[int]] = [[] for _ in range(len(window.starts_s))]
    for gradient, carriers in enumerate(window.traffic.carriers):
        for transfer in carriers.tolist():
            loads[transfer].append(gradient)
    known: dict[tuple[int, ...], int] = {}
    of_transfer = [known.setdefault(tuple(load), len(known)) for load in loads]
    carried = [
        Carried(
            name=_label(profile, load),
            gradients=tuple(profile.gradients[number].name for number in load),
            size_bytes=sum(profile.gradients[number].size_bytes for number in load),
        )
        for load in known
    ]
    return carried, of_transfer


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
    carried: Sequence[Carried],
    transfers: Sequence[Transferred],
    *,
    barrier: bool,
    clock: ComputeClock | None = None,
) -> LaidOutWindow:
    if barrier:
        arrival = dict.fromkeys(arrival, max(arrival.values(), default=0.0))
    times = op_times_after(profile, arrival, clock)
    return _laid_out(profile, name, iteration_s, times, links, carried, transfers, barrier=barrier)


def _laid_out(
    profile: Profile,
    name: str,
    iteration_s: float,
    times: OpTimes,
    links: tuple[str, ...],
    carried: Sequence[Carried],
    transfers: Sequence[Transferred],
    *,
    barrier: bool,
) -> LaidOutWindow:
    lanes = lanes_of(profile, times)
    return LaidOutWindow(
        name=name,
        iteration_s=float(iteration_s),
        barrier=barrier,
        times=times,
        lanes=tuple(lanes.names),
        op_lanes=tuple(int(lane) for lane in np.asarray(lanes.of_op, dtype=np.int64)),
        links=links,
        carried=tuple(carried),
        transfers=tuple(transfers),
    )
