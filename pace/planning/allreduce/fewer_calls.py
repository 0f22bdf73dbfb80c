"""Merges neighboring calls of a plan as long as its window keeps to a limit (docs/concepts/fusion.md)."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pace.documents.options import Options
from pace.planning.fusion.problem import FusionProblem, Partition
from pace.solver.sending import Sending

# How many calls after the first are looked at, so that the time is linear in the number of calls.
FARTHEST = 64


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a plan: its gradients and bytes. Only calls of one `kind` may be merged.

    `latest_s` is the latest end with which this call and all later ones keep to the limit.
    """

    members: tuple[int, ...]
    kind: int
    size_bytes: int
    ready_s: float
    due_s: float
    lasting_s: float = 0.0
    latest_s: float = np.inf


def fewer_calls(
    problem: FusionProblem, partition: Partition, sending: Sending, options: Options, *, until_s: float
) -> list[Call] | None:
    """Return the calls of a plan in sending order after merging; None if nothing can be merged.

    Greedy, from the first call on: as many later calls join it as can join without a window longer than
    `until_s` (on the compute clock). A merged call is sent in place of its last part, so calls between its
    parts are sent earlier. Segments of one group may be merged, and with fusion "optimal" whole groups of one
    dtype. ``options.max_group_bytes`` and ``options.max_segment_bytes`` hold for merged calls, too.
    """
    from pace.solver.kernels import partition as kernel

    knots = problem.cost.knots()

    def price(size_bytes: int) -> float:
        return float(kernel.price(float(size_bytes), *knots))

    calls = list(calls_of(problem, partition, sending, options, until_s))
    _set_latest(calls)
    before = len(calls)
    cut_limit = options.max_segment_bytes or np.inf
    whole_limit = min(cut_limit, options.max_group_bytes or np.inf)
    now, at = 0.0, 0
    while at < len(calls):
        places = _joining(calls, at, now, price, cut_limit if calls[at].kind >= 0 else whole_limit)
        if not places:
            now = max(now, calls[at].ready_s) + calls[at].lasting_s
            at += 1
            continue
        together = merged(problem, [calls[place] for place in (at, *places)])
        together.lasting_s = price(together.size_bytes)
        last = places[-1]
        between = [call for place, call in enumerate(calls[at:last], at) if place not in (at, *places)]
        following = calls[last + 1] if last + 1 < len(calls) else None
        calls[at : last + 1] = [*between, together]
        _set_latest(calls[at : at + len(between) + 1], following)
    return calls if len(calls) < before else None


def merged(problem: FusionProblem, parts: list[Call]) -> Call:
    """Return one call of several of one kind, without its duration."""
    return Call(
        members=_together(problem, parts) if parts[0].kind < 0 else parts[0].members,
        kind=parts[0].kind,
        size_bytes=sum(part.size_bytes for part in parts),
        ready_s=max(part.ready_s for part in parts),
        due_s=min(part.due_s for part in parts),
    )


def calls_of(
    problem: FusionProblem,
    partition: Partition,
    sending: Sending,
    options: Options,
    until_s: float = np.inf,
) -> Iterator[Call]:
    """Yield the calls of a plan in sending order; each is due when its tail still ends at `until_s`."""
    buffers = problem.buffers(partition)
    groups = sending.groups.tolist()
    sizes = sending.elements * buffers.element_bytes[sending.groups]
    lasting = problem.cost(sizes).tolist()
    segments = Counter(groups)
    for group, size, lasting_s in zip(groups, sizes.tolist(), lasting, strict=True):
        members = partition[group]
        may_join = segments[group] == 1 and options.fusion == "optimal"
        yield Call(
            members=members,
            kind=-1 - int(problem.dtypes[members[0]]) if may_join else group,
            size_bytes=size,
            ready_s=float(buffers.ready[group]),
            due_s=until_s - float(buffers.tail[group]),
            lasting_s=lasting_s,
        )


def _together(problem: FusionProblem, parts: list[Call]) -> tuple[int, ...]:
    """Return the gradients of all parts in order of ready time."""
    members = np.array([number for part in parts for number in part.members])
    order = np.lexsort((members, problem.sizes[members], problem.tail[members], problem.ready[members]))
    return tuple(members[order].tolist())


def _set_latest(calls: list[Call], following: Call | None = None) -> None:
    limit = np.inf if following is None else following.latest_s - following.lasting_s
    for call in reversed(calls):
        call.latest_s = min(call.due_s, limit)
        limit = call.latest_s - call.lasting_s


def _joining(
    calls: list[Call], at: int, now: float, price: Callable[[int], float], limit: float
) -> list[int]:
    """Return the places of the calls that can join the one at `at`, which would start at `now` or later."""
    first = calls[at]
    size, ready, due = first.size_bytes, first.ready_s, first.due_s
    places: list[int] = []
    fitting = 0
    for place in range(at + 1, min(at + 1 + FARTHEST, len(calls))):
        call = calls[place]
        if call.kind != first.kind:
            now = max(now, call.ready_s) + call.lasting_s
            if now > call.due_s:
                break
            continue
        size += call.size_bytes
        if size > limit:
            break
        ready, due = max(ready, call.ready_s), min(due, call.due_s)
        end = max(now, ready) + price(size)
        if end > due:
            break
        places.append(place)
        if end <= call.latest_s:
            fitting = len(places)
    return places[:fitting]
