"""From groups to ordered segments on servers, and the best of several such plans.

Each candidate has a fusion, a partition size around delta0 and an order. Its window is found by sending it
over the links as the runtime does. The fastest one is chosen.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pace.documents.schedule import SegmentOrder
from pace.planning.fusion.problem import Partition
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.flow_shop.lockstep import LockstepTimes, best_whole_order, send_in_lockstep
from pace.solver.flow_shop.two_links import TwoLinks, insertion_search, johnson_order, serve_by_rank
from pace.solver.least_bytes import least_loaded
from pace.solver.sending import Buffers, cut_while_sending
from pace_servers.planning.bounds import SegmentJobs
from pace_servers.planning.problem import ServersProblem

# Partition sizes to try, in multiples of delta0.
AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
# Then neighbors of the best size are tried, closer and closer.
FINER = (1.41, 1.23, 1.15, 1.09, 1.06, 1.035, 1.02, 1.01)
# Most segments for the search by insertion, whose time grows with the cube of their number.
MOST_INSERTED = 250
# Most segments times servers of a plan that is only tried: sending more takes over a second.
MOST_TRIED = 50_000_000
# How many of the fusions are tried with every partition size.
REFINED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersPlan:
    """Segments in planned order, and their times.

    Attributes
    ----------
    groups, elements : integer arrays of shape (num_segments,)
        The group of each segment, and the number of elements that it carries. It begins where the group's
        previous segment ended.
    segments
        The segments as jobs.
    times
        When each segment is pushed and pulled, with all workers in lock step.
    window_s
        The window with all workers in lock step, in seconds.
    """

    partition: Partition
    buffers: Buffers
    groups: IntArray
    elements: IntArray
    segments: SegmentJobs
    times: LockstepTimes
    window_s: float
    partition_bytes: int
    order: SegmentOrder


def best_plan(
    problem: ServersProblem, partitions: tuple[Partition, ...], partition_bytes: int | None
) -> ServersPlan:
    """Return the fastest candidate; with `partition_bytes`, the fastest with this partition size.

    No part is smaller than the problem allows.
    """
    suggested = problem.suggested_partition_bytes()
    total = int(problem.sent_bytes.sum())
    least = max(problem.least_bytes, math.ceil(total / most_parts(MOST_TRIED, problem.links.num_servers)))
    sizes = candidate_sizes(suggested, total, least)
    first = max(partition_bytes, problem.least_bytes) if partition_bytes else sizes[len(sizes) // 2]
    ordered = [_in_order(problem, partition) for partition in partitions]
    by_sent = partition_bytes is None
    found = [min(_plans(problem, *each, first, by_sent=by_sent), key=_preference) for each in ordered]
    if partition_bytes is None:
        # The size matters less than the groups, so sizes are varied only for the best groups.
        for at in sorted(range(len(found)), key=lambda at: _preference(found[at]))[:REFINED]:
            for size in sizes:
                if size != first:
                    found += _plans(problem, *ordered[at], size, by_sent=True)
        for factor in FINER:
            best = min(found, key=_preference)
            for size in (int(best.partition_bytes / factor), int(best.partition_bytes * factor)):
                if max(least, 1) <= size <= sizes[-1]:
                    found += _plans(problem, best.partition, best.buffers, size, by_sent=True)
    return min(found, key=_preference)


def faster_whole_plan(
    problem: ServersProblem, plan: ServersPlan, max_group_bytes: int | None
) -> ServersPlan | None:
    """Return the fastest plan that cuts no group; None if it is not faster or there are many gradients."""
    plain = problem.plain
    sent = plain.sent_by_ready()
    found = best_whole_order(
        problem.links,
        ready=plain.ready[sent],
        tail=plain.tail[sent],
        sizes=plain.sizes[sent],
        dtypes=plain.dtypes[sent],
        push_bytes=problem.push_bytes[sent],
        pull_bytes=problem.pull_bytes[sent],
        enough=plain.compute_s,
        faster_than=plan.window_s,
        max_group_bytes=max_group_bytes,
    )
    if found is None:
        return None
    in_turn = tuple(tuple(int(sent[number]) for number in group) for group in found)
    partition, buffers = _in_order(problem, in_turn + plain.unsent())
    order = np.array([partition.index(group) for group in in_turn], dtype=np.int64)
    size = int(buffers.sizes.max())
    return _priced(problem, partition, buffers, order, buffers.elements[order], size, "exhaustive")


def most_parts(most_work: int, num_servers: int) -> int:
    """Return the most segments for which segments times servers that have one is at most `most_work`."""
    return max(most_work // num_servers, math.isqrt(most_work))


def _preference(plan: ServersPlan) -> tuple[float, int, int]:
    return plan.window_s, len(plan.groups), plan.partition_bytes


def candidate_sizes(suggested_bytes: float, total_bytes: int, least_bytes: int = 0) -> tuple[int, ...]:
    """Return the partition sizes to try, in bytes: none above `total_bytes` or below `least_bytes`."""
    most = max(total_bytes, 1)
    if suggested_bytes < 1:
        # Parts lose no time, so the smallest parts are best whose number is still small enough to plan.
        suggested_bytes = max(most / 512, 1)
    # Around the smallest allowed size, if that is above what theory suggests.
    around, least = max(suggested_bytes, least_bytes), max(least_bytes, 1)
    return tuple(dict.fromkeys(min(max(int(around * factor), least), most) for factor in AROUND))


def _in_order(problem: ServersProblem, partition: Partition) -> tuple[Partition, Buffers]:
    """Sort the groups by ready time, tail and size, so that their numbers do not depend on the search."""
    buffers = problem.plain.buffers(partition)
    keys = zip(buffers.ready.tolist(), buffers.tail.tolist(), buffers.sizes.tolist(), partition, strict=True)
    ordered = tuple(group for *_, group in sorted(keys))
    return ordered, problem.plain.buffers(ordered)


def _plans(
    problem: ServersProblem, partition: Partition, buffers: Buffers, size: int, *, by_sent: bool
) -> Iterator[ServersPlan]:
    """Yield plans with parts of at most `size` bytes, or of which at most so many bytes are sent."""
    if problem.is_even:
        least = _least_elements(problem, buffers)
        # A whole number of elements may be needed for the smallest part.
        most = max(size, int(np.max(least * buffers.element_bytes, initial=0)))
        sending = cut_while_sending(buffers, problem.plain.cost, patience_s=np.inf, max_segment_bytes=most)
        if sending is not None:
            parts = join_rests(sending.groups, sending.elements, least)
            yield _priced(problem, partition, buffers, *parts, size, "longest tail")
    servers = problem.links.num_servers
    spreads = servers > 1 and servers * len(partition) <= most_parts(MOST_TRIED, servers)
    for spread in (1, servers) if spreads else (1,):
        yield from _evenly_cut(problem, partition, buffers, size, spread, by_sent=by_sent)


def _evenly_cut(
    problem: ServersProblem,
    partition: Partition,
    buffers: Buffers,
    size: int,
    spread: int,
    *,
    by_sent: bool,
) -> Iterator[ServersPlan]:
    """Cut every group into at least `spread` equal segments, and yield plans with several orders of them.

    A group that is needed immediately returns sooner over several connections than over one.
    """
    least = _least_elements(problem, buffers)
    counted = buffers.element_bytes.astype(np.float64)
    if by_sent and not problem.is_even:
        some = buffers.elements > 0
        counted[some] = _over(partition, problem.sent_bytes)[some] / buffers.elements[some]
    groups, elements = join_rests(*_cut_evenly(buffers, size / counted, spread, least), least)
    jobs = _jobs(problem, partition, buffers, groups, elements, np.zeros(len(groups), dtype=np.int64))
    rate = 1 / problem.seconds_per_byte
    two_links = TwoLinks(
        ready=jobs.ready, push=jobs.push_bytes / rate, pull=jobs.pull_bytes / rate, tail=jobs.tail
    )
    by_tail = np.lexsort((np.arange(len(groups)), jobs.ready, -jobs.tail))
    ranked: list[tuple[SegmentOrder, IntArray]] = [("longest tail", by_tail)]
    if not problem.is_even:
        ranked.append(("johnson", johnson_order(two_links.push, two_links.pull)))
    if not problem.is_even and len(groups) <= MOST_INSERTED:
        ranked.append(("insertion", insertion_search(two_links).push_order))
    for name, by_rank in ranked:
        order = by_rank if name == "insertion" else serve_by_rank(two_links, by_rank).push_order
        placed = np.ceil(elements * counted[groups]).astype(np.int64)[order]
        yield _priced(problem, partition, buffers, groups[order], elements[order], size, name, placed)


def _least_elements(problem: ServersProblem, buffers: Buffers) -> IntArray:
    return -(-problem.least_bytes // buffers.element_bytes)


def join_rests(groups: IntArray, elements: IntArray, least: IntArray) -> tuple[IntArray, IntArray]:
    """Merge the last segment of a group into the one before it, if it has fewer elements than `least`.

    Parameters
    ----------
    groups, elements : integer arrays of shape (num_segments,)
        In any order in which each group's segments are in buffer order.
    least : integer array of shape (num_groups,)
        Least number of elements of a segment of each group.
    """
    joined = elements.copy()
    before: dict[int, int] = {}
    for at, (group, count) in enumerate(zip(groups.tolist(), elements.tolist(), strict=True)):
        if group in before and count < least[group]:
            joined[before[group]] += count
            joined[at] = 0
        else:
            before[group] = at
    kept = np.flatnonzero(joined)
    return groups[kept], joined[kept]


def _cut_evenly(
    buffers: Buffers, most: FloatArray, spread: int, least: IntArray
) -> tuple[IntArray, IntArray]:
    """Cut every group into equal segments of at most `most` elements; the last one may be smaller.

    Groups are in order of ready time. Each gets at least `spread` segments, unless they would have fewer than
    `least` elements.
    """
    from pace.solver.kernels.partition import aligned, grain

    groups: list[int] = []
    elements: list[int] = []
    for group in np.lexsort((-buffers.tail, buffers.ready)).tolist():
        size = float(buffers.element_bytes[group])
        fair = max(-(-int(buffers.elements[group]) // spread), int(least[group]), 1)
        fair += -fair % grain(fair, size)
        step = min(aligned(max(int(most[group]), 1), size), fair)
        if step < least[group]:
            step = int(least[group]) + -int(least[group]) % grain(int(least[group]), size)
        whole, rest = divmod(int(buffers.elements[group]), step)
        parts = [step] * whole + ([rest] if rest else [])
        groups += [group] * len(parts)
        elements += parts
    return np.array(groups, dtype=np.int64), np.array(elements, dtype=np.int64)


def _jobs(
    problem: ServersProblem,
    partition: Partition,
    buffers: Buffers,
    groups: IntArray,
    elements: IntArray,
    server: IntArray,
) -> SegmentJobs:
    sizes = (elements * buffers.element_bytes[groups]).astype(np.float64)
    share = sizes / np.maximum(buffers.sizes[groups], 1)
    pushed, pulled = (_over(partition, travelling) for travelling in (problem.push_bytes, problem.pull_bytes))
    return SegmentJobs(
        ready=buffers.ready[groups],
        tail=buffers.tail[groups],
        push_bytes=share * pushed[groups] + problem.links.overhead_bytes,
        pull_bytes=share * pulled[groups] + problem.links.overhead_bytes,
        server=server,
    )


def _over(partition: Partition, values: FloatArray) -> FloatArray:
    if not partition:
        return np.zeros(0)
    starts = np.cumsum([0, *map(len, partition[:-1])])
    over_groups: FloatArray = np.add.reduceat(
        values[np.fromiter(chain.from_iterable(partition), int)], starts
    )
    return over_groups


def _priced(
    problem: ServersProblem,
    partition: Partition,
    buffers: Buffers,
    groups: IntArray,
    elements: IntArray,
    size: int,
    order: SegmentOrder,
    placed_bytes: IntArray | None = None,
) -> ServersPlan:
    """Place the segments on servers, in their order, and send them.

    Servers get equal sums of `placed_bytes`, one for each segment (default: the segments' bytes).
    """
    if placed_bytes is None:
        placed_bytes = elements * buffers.element_bytes[groups]
    server = least_loaded(placed_bytes, problem.links.num_servers)
    segments = _jobs(problem, partition, buffers, groups, elements, server)
    overhead = problem.links.overhead_bytes
    times = send_in_lockstep(
        problem.links,
        ready=segments.ready,
        sizes=segments.push_bytes - overhead,
        pull_sizes=segments.pull_bytes - overhead,
        server=server,
    )
    arrival = buffers.ready.copy()
    np.maximum.at(arrival, groups, times.pull_ends)
    window = max(problem.plain.compute_s, float(np.max(arrival + buffers.tail, initial=0.0)))
    return ServersPlan(
        partition=partition,
        buffers=buffers,
        groups=groups,
        elements=elements,
        segments=segments,
        times=times,
        window_s=window,
        partition_bytes=size,
        order=order,
    )


def offsets(plan: ServersPlan) -> tuple[int, ...]:
    """Return the offset of each segment in its group's buffer, in bytes."""
    filled = [0] * len(plan.partition)
    begins = []
    for group, elements in zip(plan.groups.tolist(), plan.elements.tolist(), strict=True):
        begins.append(filled[group])
        filled[group] += elements * int(plan.buffers.element_bytes[group])
    return tuple(begins)
