"""Decides whether a job's collectives can hang, and finds the shortest circle of ranks that wait.

An *execution* starts operations one after another, each at any time after all that it waits for has ended
(``Operations``); a meeting ends once it has all its operations. An execution *hangs* if it stops before every
operation has ended.

**Theorem.** Let every queue and every seat belong to one thread. Then either no execution hangs, or every
execution that goes on as long as it can hangs, and all of them stop at the same operations. An execution that
starts whatever it can, in any order, tells which.

*Proof.* The order at a queue or a seat is then the order in which its one thread issues, so what an operation
waits for, and which operations meet, are the same in all executions. What has ended stays ended: an operation
that can start can start until it does. Let E be an execution that stops, and F any other. Suppose that F
starts an operation that E does not, and let x be the first. All that x waits for ended in F before. What
ended there without meeting anyone had started before x, so it started in E, and ended. A meeting that ended
there had all its operations started before x, so E started them too, and it ended. Hence x can start in E,
which did not stop: a contradiction. So F starts no operation that E does not, and if F stops as well, the
reverse holds. ∎

**Corollary.** With fewer constraints than these, no more executions hang: if operations wait for less, or if
a meeting ends for some of its operations before all have started, then the same proof gives an execution that
starts at least the same operations. A proof therefore stays valid for collectives that do not synchronize
all ranks, such as a broadcast for its root.

**Circles.** Let an execution hang in which all meetings agree and lack no operation. A meeting that has
started and not ended lacks an operation that has not started. That one waits, on its own rank, for a first
operation that has not ended; follow these until one has started, which is in a meeting that has started and
not ended; or until one comes twice, a circle within the rank. There are finitely many meetings, so one comes
again: a circle of meetings, each of which waits for a rank that waits in the next.

The execution takes O(n + edges) time for n operations. The shortest circle takes O(m e) for m meetings under
way and e operations that they lack; m is at most the number of queues.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from pace.solver.arrays import IntArray
from pace.solver.collective_order.operations import THREAD_WAITS, Operations

IN_CIRCLE = -2


class Disagreement(Enum):
    """In what two operations differ that meet."""

    KIND = 1
    DTYPE = 2
    SIZE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Two operations that meet and differ: the first of their communicator, the `number`-th from 0."""

    communicator: int
    number: int
    disagreement: Disagreement
    one: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A seat whose rank never comes to its communicator's `number`-th meeting, and an operation that does."""

    communicator: int
    number: int
    present: int
    absent_seat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleStep:
    """A rank that waits in one meeting and is missing in the meeting before it in the circle.

    Attributes
    ----------
    waits_in
        Its operation that has started and not ended.
    held_at
        The operation at which its thread waits, if it is the thread that does not go on.
    missing
        Its operation that has not started.
    """

    waits_in: int
    held_at: int | None
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDecision:
    """What was decided. Nothing can hang if all parts are empty.

    Attributes
    ----------
    shared
        Pairs of operations of two threads on one queue, or at one seat: their order is up to chance.
    circle
        A shortest circle of meetings in the state in which every execution stops.
    rank_circle
        Operations of one rank, each of which waits for the next and the last for the first.
    num_ended
        How many operations end.
    """

    misfits: tuple[Misfit, ...]
    absences: tuple[Absence, ...]
    shared: tuple[tuple[int, int], ...]
    circle: tuple[CircleStep, ...]
    rank_circle: tuple[int, ...]
    num_ended: int

    @property
    def cannot_hang(self) -> bool:
        """Whether every execution ends."""
        return not (self.misfits or self.absences or self.shared or self.circle or self.rank_circle)


def decide(operations: Operations) -> OrderDecision:
    """Decide whether an execution can hang; exact (see the theorem above), O(operations + edges)."""
    from pace.solver.collective_order import kernel

    num_ops = len(operations)
    num_communicators = _size(operations.seat_communicator)
    num_queues = max(_size(operations.queue), _size(operations.stream))
    meeting, starts, counts = kernel.number_meetings(
        operations.seat, operations.seat_communicator, num_communicators
    )
    differs, pair = kernel.find_disagreements(
        meeting, operations.kind, operations.dtype, operations.size_bytes, int(starts[-1])
    )
    least = np.full(num_communicators, np.iinfo(np.int64).max)
    np.minimum.at(least, operations.seat_communicator, counts)
    members = np.bincount(operations.seat_communicator, minlength=num_communicators)
    needed = np.repeat(members, np.diff(starts))
    number = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    needed[(differs > 0) | (number >= np.repeat(least, np.diff(starts)))] = -1

    edge_starts, edge_targets = _grouped(operations.edges, num_ops)
    before_starts, before = kernel.link(
        operations.thread,
        operations.stream,
        operations.queue,
        operations.seat,
        operations.waits,
        operations.is_batched,
        operations.seat_is_ordered,
        edge_starts,
        edge_targets,
        _size(operations.thread),
        num_queues,
    )
    num_devices = _size(operations.device)
    started, ended = kernel.execute(before_starts, before, meeting, needed, operations.device, num_devices)
    misfits, absences = _first_differences(operations, meeting, starts, counts, differs, pair)
    circle: tuple[CircleStep, ...] = ()
    rank_circle: tuple[int, ...] = ()
    if not ended.all():
        head, cause = kernel.find_heads(before_starts, before, started, ended, operations.device, num_devices)
        circle = _shortest_circle(operations, meeting, started, ended, head, cause)
        rank_circle = _circle_of_a_rank(head, cause)
    places = (
        (operations.stream, num_queues),
        (operations.queue, num_queues),
        (operations.seat, len(counts)),
        (operations.device, num_devices),
    )
    shared = {
        (int(one), int(other)): None
        for place, num_places in places
        for one, other in kernel.find_shared_queues(operations.thread, place, num_places)
    }
    decision = OrderDecision(
        misfits=misfits,
        absences=absences,
        shared=tuple(shared),
        circle=circle,
        rank_circle=rank_circle,
        num_ended=int(ended.sum()),
    )
    assert decision.num_ended == num_ops or not decision.cannot_hang
    return decision


def _size(numbers: IntArray) -> int:
    return int(numbers.max(initial=-1)) + 1


def _grouped(edges: IntArray, num_sources: int) -> tuple[IntArray, IntArray]:
    """Return the second of each pair grouped by the first: where each group begins, and the groups."""
    counts = np.bincount(edges[:, 0], minlength=num_sources)
    order = np.argsort(edges[:, 0], kind="stable")
    return np.concatenate(([0], np.cumsum(counts))), edges[order, 1]


def _first_differences(
    operations: Operations,
    meeting: IntArray,
    starts: IntArray,
    counts: IntArray,
    differs: IntArray,
    pair: IntArray,
) -> tuple[tuple[Misfit, ...], tuple[Absence, ...]]:
    """Return for each communicator the first meeting that cannot end by itself."""
    misfits, absences = [], []
    wrong = np.flatnonzero(differs)
    first_wrong: dict[int, int] = {}
    for met, communicator in zip(
        wrong.tolist(), (np.searchsorted(starts, wrong, side="right") - 1).tolist(), strict=True
    ):
        first_wrong.setdefault(communicator, met)
    least = np.full(len(starts) - 1, np.iinfo(np.int64).max)
    np.minimum.at(least, operations.seat_communicator, counts)
    uneven = np.flatnonzero(least < np.diff(starts)).tolist()
    for communicator in sorted({*first_wrong, *uneven}):
        begin = int(starts[communicator])
        absent_from = begin + int(least[communicator])
        met = first_wrong.get(communicator, absent_from)
        if met < absent_from or communicator not in uneven:
            misfits.append(
                Misfit(
                    communicator=communicator,
                    number=met - begin,
                    disagreement=Disagreement(int(differs[met])),
                    one=int(pair[met, 0]),
                    other=int(pair[met, 1]),
                )
            )
            continue
        seats = np.flatnonzero(operations.seat_communicator == communicator)
        absences.append(
            Absence(
                communicator=communicator,
                number=absent_from - begin,
                present=int(np.argmax(meeting == absent_from)),
                absent_seat=int(seats[np.argmin(counts[seats])]),
            )
        )
    return tuple(misfits), tuple(absences)


def _shortest_circle(
    operations: Operations,
    meeting: IntArray,
    started: IntArray,
    ended: IntArray,
    head: IntArray,
    cause: IntArray,
) -> tuple[CircleStep, ...]:
    from pace.solver.collective_order import kernel

    under_way = np.unique(meeting[started & ~ended])
    if not len(under_way):
        return ()
    place = np.minimum(np.searchsorted(under_way, meeting), len(under_way) - 1)
    lacking = np.flatnonzero(~started & (meeting >= 0) & (under_way[place] == meeting) & (head >= 0))
    edges = np.stack([place[lacking], place[head[lacking]]], axis=1)
    starts, targets = _grouped(edges, len(under_way))
    nodes = kernel.shortest_cycle(starts, targets, len(under_way)).tolist()
    steps = []
    for node, following in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        missing = int(lacking[np.argmax((edges[:, 0] == node) & (edges[:, 1] == following))])
        held_at: int | None = None
        at = missing
        while not started[at]:
            at = int(cause[at])
            if held_at is None and operations.waits[at] == THREAD_WAITS:
                held_at = at
        steps.append(CircleStep(waits_in=at, held_at=held_at, missing=missing))
    return tuple(steps)


def _circle_of_a_rank(head: IntArray, cause: IntArray) -> tuple[int, ...]:
    circling = np.flatnonzero(head == IN_CIRCLE)
    if not len(circling):
        return ()
    seen: dict[int, int] = {}
    at = int(circling[0])
    while at not in seen:
        seen[at] = len(seen)
        at = int(cause[at])
    return tuple(list(seen)[seen[at] :])
