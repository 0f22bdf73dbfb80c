"""Every plan of a tiny program, with its time and its memory: every order and every bucket."""

from collections.abc import Iterator

import numpy as np

from pace.solver.graph.program import COLLECTIVE, WAIT, Bucket, Program, ProgramPlan
from pace.solver.graph.timeline import run


def orders(program: Program) -> Iterator[tuple[int, ...]]:
    """Yield every order in which nodes come after what they read."""

    def extend(order: tuple[int, ...], left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield order
        for node in sorted(left):
            if not left.intersection(program.deps[node].tolist()):
                yield from extend((*order, node), left - {node})

    return extend((), frozenset(range(len(program))))


def bucketings(program: Program) -> Iterator[tuple[Bucket, ...]]:
    """Yield every way to put collectives of one key into buckets."""

    def extend(left: list[int], parts: tuple[Bucket, ...]) -> Iterator[tuple[Bucket, ...]]:
        if not left:
            yield tuple(part for part in parts if len(part) > 1)
            return
        first, *others = left
        yield from extend(others, (*parts, (first,)))
        for at, part in enumerate(parts):
            if program.key[part[0]] == program.key[first]:
                yield from extend(others, (*parts[:at], (*part, first), *parts[at + 1 :]))

    return extend(program.collectives().tolist(), ())


def in_one_piece(program: Program, order: tuple[int, ...], buckets: tuple[Bucket, ...]) -> bool:
    """Return whether members follow one another, and so do their waits."""
    place = {node: at for at, node in enumerate(order)}
    for bucket in buckets:
        for nodes in (bucket, program.wait_of[list(bucket)].tolist()):
            places = sorted(place[node] for node in nodes)
            if places[-1] - places[0] != len(places) - 1:
                return False
    return True


def peak_bytes(program: Program, order: tuple[int, ...], buckets: tuple[Bucket, ...]) -> int:
    """Return the most memory that is in use at once, after the rules of ``pace.solver.graph.program``."""
    bucket_of = {member: bucket for bucket in buckets for member in bucket}
    first_wait = {bucket: min(program.wait_of[list(bucket)], key=order.index) for bucket in buckets}
    fresh: dict[int, int] = {}  # at which node each storage is allocated
    last: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for at, node in enumerate(order):
        bucket = bucket_of.get(node, ())
        begins = order.index(first_wait[bucket]) if bucket else at
        if program.size_bytes[node]:
            fresh[node], sizes[node] = begins, int(program.size_bytes[node])
            last[node] = max(last.get(node, 0), begins)
        until = order.index(int(program.wait_of[node])) if program.kind[node] == COLLECTIVE else at
        for dep in program.deps[node].tolist():
            storage = int(program.storage[dep])
            last[storage] = max(last.get(storage, 0), at if bucket else until)
        if program.kind[node] == WAIT:
            storage = int(program.storage[node])
            last[storage] = max(last.get(storage, 0), at)
    change = np.zeros(len(order) + 1)
    for storage, size in sizes.items():
        change[fresh[storage]] += size
        if not program.kept[storage]:
            change[last[storage] + 1] -= size
    for bucket in buckets:
        members = list(bucket)
        size = int((program.input_bytes + program.output_bytes)[members].sum())
        change[min(order.index(member) for member in bucket)] += size
        change[order.index(first_wait[bucket]) + 1] -= size
    return program.resident_bytes + int(np.cumsum(change).max(initial=0))


def every_plan(program: Program) -> Iterator[ProgramPlan]:
    """Yield every order with every choice of buckets."""
    for buckets in bucketings(program):
        for order in orders(program):
            if in_one_piece(program, order, buckets):
                yield ProgramPlan(order=np.array(order), buckets=buckets)


def fastest(program: Program, budget_bytes: int | None = None) -> float:
    """Return the end of the fastest plan within a budget; infinite if there is none."""
    best = np.inf
    for plan in every_plan(program):
        end_s = run(program, plan).end_s
        if end_s < best and (
            budget_bytes is None
            or peak_bytes(program, tuple(plan.order.tolist()), plan.buckets) <= budget_bytes
        ):
            best = end_s
    return float(best)


def least_bytes(program: Program) -> int:
    """Return the least peak memory of all plans."""
    return min(peak_bytes(program, tuple(plan.order.tolist()), plan.buckets) for plan in every_plan(program))
