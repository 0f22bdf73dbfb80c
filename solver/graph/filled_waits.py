"""An order in which ops run later, where a plan waits for a wire.

Within a tight memory budget, some collectives have to end before an op runs, as their inputs leave it no
room. If there is too little compute meanwhile, the plan waits. A sink is a collective whose output no other
collective needs. Ops that serve only one sink, such as the matrix product of a gradient, may run in that time
instead of before. What they read stays in memory until then. What they return stays in memory until no more
is in use than when that time began: only then is it cast and sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace.solver.graph.fused_program import fuse
from pace.solver.graph.list_schedule import ListScheduler
from pace.solver.graph.memory import memory_in_use
from pace.solver.graph.program import COLLECTIVE, OP, WAIT, Program, ProgramPlan
from pace.solver.graph.reorder import fused_order
from pace.solver.graph.timeline import run

SHORTEST_WAIT = 1e-5
"""Waits count if they take at least this share of the plan's time."""
SPARE = 0.5
"""This share of what the awaited collective reads must stay free in memory: its wire carries more later."""
LEAST_WAITS = 2e-3
"""Ops move only if all waits together take at least this share of the plan's time."""


def with_filled_waits(
    scheduler: ListScheduler, plan: ProgramPlan, order: IntArray, budget_bytes: int
) -> IntArray | None:
    """Return an order with ops moved to where a plan waits; None if none can move.

    A heuristic. Only ops that run after the previous wait move to a wait. Those that hold the fewest bytes
    for each second move first. Complexity: a few passes over the program.

    Parameters
    ----------
    scheduler
        The scheduler of the program in its own order.
    order
        The order of the program that list scheduling made the plan from.
    """
    program = scheduler.program
    waits = _waits(program, plan)
    if not waits:
        return None
    bare = fuse(program, ())
    users = bare.uses.reversed(len(bare.storage_bytes))
    room = budget_bytes - _in_use_bytes(program, plan)
    place, base = np.empty(len(program)), np.empty(len(program))
    place[plan.order] = base[order] = np.arange(len(program))
    moved = base.copy()
    groups = list(_groups(scheduler, place))

    def held(group: _Group, begin: int) -> list[tuple[int, int]]:
        """Return what the group reads and others no longer need: from which place on, and its bytes."""
        nodes = set(group.nodes.tolist())
        found = []
        for storage in {each for node in nodes for each in bare.uses[node].tolist()} - nodes:
            others = [place[node] for node in users[storage].tolist() if node not in nodes]
            last = int(max(others, default=place[storage]))
            if bare.storage_bytes[storage] and not bare.kept[storage] and last < begin:
                found.append((last + 1, int(bare.storage_bytes[storage])))
        return found

    since = 0
    for wait in waits:
        begin, end = int(place[wait.first]), int(place[wait.node])
        ample = np.flatnonzero(room[end + 1 :] >= room[begin])
        sent_at = end + 1 + int(ample[0]) if len(ample) else len(program) - 1
        left_s = wait.idle_s
        between = [group for group in groups if since <= group.first and group.last < begin]
        between = [group for group in between if not begin <= group.sent <= end]
        held_bytes = [sum(size for _, size in held(group, begin)) for group in between]
        per_second = [size / group.spent_s for size, group in zip(held_bytes, between, strict=True)]
        for group in (between[at] for at in np.argsort(per_second, kind="stable").tolist()):
            if left_s <= 0:
                break
            after = room[since : begin + 1].copy()
            for last, size in held(group, begin):
                after[max(0, last - since) :] -= size
            changed = after[after < room[since : begin + 1]]
            returned = room[begin + 1 : sent_at]
            if (changed < SPARE * wait.input_bytes).any() or (returned < group.returned_bytes).any():
                continue
            room[since : begin + 1] = after
            returned -= group.returned_bytes
            left_s -= group.spent_s
            early, late = np.split(group.nodes, [group.num_early])
            place[early] = begin
            moved[early] = base[wait.first] + 0.5
            moved[late] = np.maximum(moved[late], base[plan.order[sent_at]] - 0.5)
        since = end
    return fused_order(bare, moved) if (moved != base).any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A sink and the ops that serve only it.

    Attributes
    ----------
    nodes
        In program order, the sink last.
    num_early
        The number of nodes up to the smallest output: the rest runs when memory is ample again.
    first, last, sent
        The places of the first and the last op that takes time, and of the sink.
    """

    nodes: IntArray
    num_early: int
    returned_bytes: int
    spent_s: float
    first: int
    last: int
    sent: int


def _groups(scheduler: ListScheduler, place: FloatArray) -> Iterator[_Group]:
    program = scheduler.program
    by_sink = np.argsort(scheduler.sink_of, kind="stable")
    cuts = np.flatnonzero(np.diff(scheduler.sink_of[by_sink])) + 1
    for nodes in np.split(by_sink, cuts):
        at = place[nodes[program.duration[nodes] > 0]]
        if not len(at) or scheduler.sink_of[nodes[0]] < 0:
            continue
        sizes = np.where(program.kind[nodes] == OP, program.size_bytes[nodes], 0)
        least = sizes[sizes > 0].min(initial=sizes.max())
        yield _Group(
            nodes=nodes,
            num_early=int(np.flatnonzero(sizes == least)[-1]) + 1,
            returned_bytes=int(least),
            spent_s=float(program.duration[nodes].sum()),
            first=int(at.min()),
            last=int(at.max()),
            sent=int(place[nodes[-1]]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitOfPlan:
    """A wait for which compute stands still.

    Attributes
    ----------
    first
        The first of the collectives that keep the wire busy until the wait ends.
    input_bytes
        What the awaited collective reads.
    """

    node: int
    first: int
    idle_s: float
    input_bytes: int


def _waits(program: Program, plan: ProgramPlan) -> list[_WaitOfPlan]:
    """Return the waits before the last op, in their order; none if they are not worth moving ops."""
    times = run(program, plan)
    start, end = times.start.tolist(), times.end.tolist()
    shortest_s = SHORTEST_WAIT * times.end_s
    first: dict[int, int] = {}
    latest: dict[int, int] = {}
    found: list[_WaitOfPlan] = []
    num_found = 0
    now = 0.0
    for node in plan.order.tolist():
        if program.kind[node] == COLLECTIVE:
            wire = int(program.wire[node])
            before = latest.get(wire, node)
            first[node] = first.get(before, node) if start[node] <= end[before] + shortest_s else node
            latest[wire] = node
            continue
        if program.kind[node] == WAIT and start[node] > now + shortest_s:
            collective = int(program.deps[node][0])
            found.append(
                _WaitOfPlan(
                    node=node,
                    first=first[collective],
                    idle_s=start[node] - now,
                    input_bytes=int(program.input_bytes[collective]),
                )
            )
        elif program.duration[node] > 0:
            num_found = len(found)
        now = max(now, end[node])
    del found[num_found:]
    return found if sum(wait.idle_s for wait in found) >= LEAST_WAITS * times.end_s else []


def _in_use_bytes(program: Program, plan: ProgramPlan) -> IntArray:
    """Return the bytes in use at each place of a plan's order; the members of a bucket are one step."""
    steps = fuse(program, plan.buckets).place[plan.order]
    number = np.cumsum(np.append(0, np.diff(steps) != 0))
    in_use: IntArray = memory_in_use(program, plan).in_use_bytes[number]
    return in_use
