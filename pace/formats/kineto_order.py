"""The order in which the ranks of a job issued their collectives, as their Kineto traces recorded it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pace.formats.kineto_trace import Collective, HostOp, KinetoTrace

STEP = "ProfilerStep#"
# What torch records of a process group that is no collective.
_NO_COLLECTIVES = ("init", "wait", "startcoalescing", "endcoalescing")
_TRANSFERS = ("send", "recv", "sendrecv", "isend", "irecv", "recvanysource", "batch_isend_irecv")


class IssuedCollective(NamedTuple):
    """A collective that a rank issued, and the operator that recorded it."""

    call: Collective
    op: HostOp

    @property
    def group(self) -> str:
        """The name of its process group."""
        return self.call.group or "0"

    @property
    def kind(self) -> str:
        """Its name without differences in spelling."""
        return self.call.name.replace("_", "").strip()


def issued_collectives(traces: Mapping[int, KinetoTrace]) -> dict[int, list[IssuedCollective]]:
    """Return what each rank issued in the steps that all traces have, in the order of issue.

    Transfers between two ranks are left out: batches of them have no order.
    """
    spans = {rank: _steps(trace) for rank, trace in traces.items()}
    common = set.intersection(*(set(steps) for steps in spans.values())) if spans else set()
    found = {}
    for rank, trace in traces.items():
        begin = min((spans[rank][step][0] for step in common), default=float("-inf"))
        end = max((spans[rank][step][1] for step in common), default=float("inf"))
        found[rank] = [
            IssuedCollective(op.collective, op)
            for op in sorted(trace.ops, key=lambda op: op.start_s)
            if op.collective is not None and begin <= op.start_s <= end and _is_collective(op.collective)
        ]
    return found


def _is_collective(call: Collective) -> bool:
    name = call.name.replace("_", "").strip()
    return name not in _NO_COLLECTIVES and not name.startswith(_TRANSFERS)


def _steps(trace: KinetoTrace) -> dict[str, tuple[float, float]]:
    return {each.name: (each.start_s, each.end_s) for each in trace.annotations if each.name.startswith(STEP)}


def first_difference(traces: Sequence[KinetoTrace]) -> str | None:
    """Return how the order of collectives first differs between ranks, in one line; None if it does not.

    Compared are collectives of one group on all ranks that use it, and the order of those groups that two
    ranks share. Traces that do not say their rank, or that were not recorded in the same steps, are not
    compared where they have different numbers of collectives.
    """
    by_rank = {trace.rank: trace for trace in traces if trace.rank is not None}
    if len(by_rank) < 2:
        return None
    issued = issued_collectives(by_rank)
    have_steps = all(_steps(trace) for trace in by_rank.values())
    by_group: defaultdict[str, dict[int, list[IssuedCollective]]] = defaultdict(dict)
    for rank, calls in issued.items():
        for call in calls:
            by_group[call.group].setdefault(rank, []).append(call)
    for group, users in by_group.items():
        first, *others = users
        for other in others:
            if (found := _in_group(group, first, users[first], other, users[other], have_steps)) is not None:
                return found
    return next(_across_groups(issued), None)


def _in_group(
    group: str,
    first: int,
    mine: list[IssuedCollective],
    other: int,
    theirs: list[IssuedCollective],
    have_steps: bool,
) -> str | None:
    if mine[0].call.ranks != theirs[0].call.ranks:
        return None  # another dimension's group of the same name
    if len(mine) != len(theirs) and not have_steps:
        return None
    for number, (one, two) in enumerate(zip(mine, theirs, strict=False), start=1):
        if one.kind != two.kind:
            return (
                f'number {number} of group "{group}" is {one.call.name} on rank {first} and {two.call.name} '
                f"on rank {other}"
            )
    if len(mine) != len(theirs):
        return (
            f'rank {first} issued {len(mine)} collectives of group "{group}" in the recorded steps, and rank '
            f"{other} {len(theirs)}"
        )
    return None


def _across_groups(issued: Mapping[int, list[IssuedCollective]]) -> Iterator[str]:
    """Yield where two ranks issue collectives of two groups that they share in different orders."""
    ranks = sorted(issued)
    groups = {rank: {call.group for call in calls} for rank, calls in issued.items()}
    first = ranks[0]
    for other in ranks[1:]:
        shared = groups[first] & groups[other]
        if len(shared) < 2:
            continue
        mine = [call for call in issued[first] if call.group in shared]
        theirs = [call for call in issued[other] if call.group in shared]
        for number, (one, two) in enumerate(zip(mine, theirs, strict=False), start=1):
            if one.group != two.group:
                yield (
                    f"after {number - 1} equal collectives, rank {first} issues {one.call.name} of group "
                    f'"{one.group}" and rank {other} {two.call.name} of group "{two.group}"'
                )
                break
