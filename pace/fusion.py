"""Fusion search: which gradients share a buffer (DESIGN 5). The mathematics is in ``pace.solver.partition``.

A partition is a tuple of groups, a group a tuple of gradient numbers in order of ready time. Gradients of
different dtype never share a group; one without bytes is a group of its own that is never sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np

from pace.graph import FloatArray
from pace.options import Options
from pace.profile import ELEMENT_BYTES, Profile
from pace.solver import jackson
from pace.solver.cost import CostCurve, Line
from pace.solver.fifo import best_fifo
from pace.solver.instance import Instance, IntArray
from pace.solver.partition import EXACT, Chain, best_layered, max_min_partitions, runs
from pace.solver.sending import Buffers

Partition = tuple[tuple[int, ...], ...]

# The exact search is repeated with the latency scaled: in a realisable plan a preempted group pays it twice.
LATENCY_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SEARCH_GAP = 1e-3
RELAXED = 1e-5
CONTRACT_BEYOND = 2000
CONTRACTED = 1000
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """What the search found.

    Attributes
    ----------
    partitions
        The best under free preemption first, then others worth pricing with real segments.
    method
        The algorithm in words.
    """

    partitions: tuple[Partition, ...]
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The gradients as the search sees them.

    Attributes
    ----------
    ready, tail : arrays of shape (num_gradients,)
        Seconds.
    sizes, dtypes : integer arrays of shape (num_gradients,)
        Bytes, and the number of the class that may share a buffer.
    compute_s
        The window without any all-reduce.
    """

    ready: FloatArray
    tail: FloatArray
    sizes: IntArray
    element_bytes: IntArray
    dtypes: IntArray
    compute_s: float
    cost: CostCurve

    @classmethod
    def of(cls, profile: Profile, *, barrier: bool = False) -> "Problem":
        """Build from a profile; with `barrier` no forward op starts before the last all-reduce has ended."""
        timing = profile.timing
        names = [gradient.dtype for gradient in profile.gradients]
        classes = {name: number for number, name in enumerate(sorted(set(names)))}
        tail = timing.tail_s
        return cls(
            ready=timing.ready_s,
            tail=np.full_like(tail, tail.max(initial=0.0)) if barrier else tail,
            sizes=np.array([gradient.size_bytes for gradient in profile.gradients], dtype=np.int64),
            element_bytes=np.array([ELEMENT_BYTES[name] for name in names], dtype=np.int64),
            dtypes=np.array([classes[name] for name in names], dtype=np.int64),
            compute_s=timing.compute_s,
            cost=profile.cost,
        )

    def buffers(self, partition: Partition) -> Buffers:
        """Return the groups of `partition` as buffers."""
        members = np.fromiter(chain.from_iterable(partition), dtype=np.int64)
        if not len(members):
            empty = np.zeros(0)
            none = np.zeros(0, dtype=np.int64)
            return Buffers(ready=empty, tail=empty, elements=none, element_bytes=none)
        starts = np.concatenate(([0], np.cumsum([len(group) for group in partition])[:-1]))
        element_bytes = self.element_bytes[members[starts]]
        return Buffers(
            ready=np.maximum.reduceat(self.ready[members], starts),
            tail=np.maximum.reduceat(self.tail[members], starts),
            elements=np.add.reduceat(self.sizes[members], starts) // element_bytes,
            element_bytes=element_bytes,
        )

    def classes(self) -> list[IntArray]:
        """Return, for each class with bytes to send, its gradients in order of ready time."""
        order = self.sent_by_ready()
        return [order[self.dtypes[order] == number] for number in np.unique(self.dtypes[order])]

    def sent_by_ready(self) -> IntArray:
        """Return the gradients with bytes by ready time, then tail, then size.

        The order in which a profile lists its gradients must not matter, and of gradients ready together
        the one needed last has to come first for the chain to be layered.
        """
        order = np.lexsort((self.dtypes, self.sizes, self.tail, self.ready))
        return order[self.sizes[order] > 0]

    def sent_by_tail(self) -> IntArray:
        """Return the gradients with bytes by tail, then ready time, then size."""
        order = np.lexsort((self.dtypes, self.sizes, self.ready, self.tail))
        return order[self.sizes[order] > 0]

    def unsent(self) -> Partition:
        """Return the gradients without bytes, each a group of its own."""
        return tuple((int(number),) for number in np.flatnonzero(self.sizes == 0))

    def chain_of(self, members: IntArray) -> Chain:
        """Return the gradients `members`, in that order, as a chain."""
        return Chain(ready=self.ready[members], tail=self.tail[members], sizes=self.sizes[members])


def fuse(problem: Problem, options: Options) -> Fusion:
    """Search for groups as `options` asks."""
    if not problem.sizes.any():
        return Fusion(partitions=(problem.unsent(),), method="nothing to send, exact")
    if options.fusion == "none":
        every = tuple((int(number),) for number in problem.sent_by_ready())
        return Fusion(partitions=(every + problem.unsent(),), method="one group per gradient")
    if options.target != "pace":
        return _fuse_for_barrier(problem, options)
    if options.fusion == "pace":
        return _fuse_as_paper(problem, options)
    return _fuse_optimally(problem, options)


def oracle_instance(buffers: Buffers, cost: CostCurve, slot_s: float | None) -> Instance:
    """Return the buffers as one-machine jobs, in slots where `slot_s` is given."""
    instance = buffers.instance(cost)
    return instance if slot_s is None else instance.in_slots(slot_s)


def _cut(members: IntArray, cuts: list[int]) -> Partition:
    return tuple(tuple(members[run].tolist()) for run in runs(cuts, len(members)))


def _fuse_as_paper(problem: Problem, options: Options) -> Fusion:
    """Algorithm 1: for every R the MaxMinSize partition, priced by the oracle; the best R wins.

    One R for each class of gradients, chosen class by class where there are several. R stops growing where
    the latency of R calls alone, with everything else free, makes the window longer than the best.
    """
    classes = [problem.chain_of(members) for members in problem.classes()]
    cuts: list[list[int]] = [[0] for _ in classes]
    for number in sorted(range(len(classes)), key=lambda k: -int(classes[k].sizes.sum())):
        best = np.inf
        for trial in max_min_partitions(classes[number].sizes):
            if _latency_floor(classes[number], len(trial), problem.cost) >= best:
                break
            if not _fits(classes[number], trial, options.max_group_bytes):
                continue
            value = _price(problem, classes, [*cuts[:number], trial, *cuts[number + 1 :]], options)
            if value < best:
                best, cuts[number] = value, trial
    method = "MaxMinSize for every number of groups (Algorithm 1), heuristic"
    if len(classes) > 1:
        method += ", one dtype after another"
    parts = (_cut(members, part) for members, part in zip(problem.classes(), cuts, strict=True))
    return Fusion(partitions=(tuple(chain(*parts)) + problem.unsent(),), method=method)


def _fits(chain_: Chain, cuts: list[int], max_group_bytes: int | None) -> bool:
    if max_group_bytes is None:
        return True
    return all(len(run) == 1 or chain_.sizes[run].sum() <= max_group_bytes for run in runs(cuts, len(chain_)))


def _latency_floor(chain_: Chain, calls: int, cost: CostCurve) -> float:
    """Return a bound on the window when the chain goes out in `calls` calls, each the cheapest there is."""
    busy = calls * float(cost(chain_.sizes.min()))
    return float(chain_.ready.min()) + busy + float(chain_.tail.min())


def _price(problem: Problem, classes: list[Chain], cuts: list[list[int]], options: Options) -> float:
    """Return the oracle's window for runs of each class; longest tail first equals the LP on slots."""
    parts = [part.fuse(of_part, problem.cost) for part, of_part in zip(classes, cuts, strict=True)]
    instance = parts[0]
    if len(parts) > 1:
        instance = Instance(
            ready=np.concatenate([part.ready for part in parts]),
            processing=np.concatenate([part.processing for part in parts]),
            tail=np.concatenate([part.tail for part in parts]),
        )
    return _window(problem, instance, options.slot_s)


def _window(problem: Problem, instance: Instance, slot_s: float | None) -> float:
    if slot_s is not None:
        instance = instance.in_slots(slot_s)
    return max(jackson.solve(instance).objective * (slot_s or 1.0), problem.compute_s)


def _fuse_for_barrier(problem: Problem, options: Options) -> Fusion:
    """Minimise the end of the last all-reduce, first in, first out: all that counts before a barrier."""
    parts = []
    for members in problem.classes():
        cuts, _ = best_fifo(problem.chain_of(members), problem.cost, max_group_bytes=options.max_group_bytes)
        parts.append(_cut(members, cuts))
    exact = "exact" if len(parts) <= 1 else "each dtype by itself, heuristic"
    method = f"dynamic program over prefixes, first in first out with a barrier, {exact}"
    return Fusion(partitions=(tuple(chain(*parts)) + problem.unsent(),), method=method)


def _fuse_optimally(problem: Problem, options: Options) -> Fusion:
    classes = problem.classes()
    layered = len(classes) == 1 and problem.chain_of(classes[0]).is_layered
    seeds = list(_seeds(problem, classes, options.max_group_bytes, layered=layered))
    if layered:
        return Fusion(
            partitions=_with_unsent(problem, seeds, options), method=_method_of_layered(problem, options)
        )
    seeds.sort(key=lambda seed: _window(problem, problem.buffers(seed).instance(problem.cost), None))
    best, calls = _improve(problem, seeds[0], options)
    method = f"local search from the dynamic program's groups, {calls} oracle calls, heuristic"
    return Fusion(partitions=_with_unsent(problem, [best, *seeds], options), method=method)


def _with_unsent(problem: Problem, found: list[Partition], options: Options) -> tuple[Partition, ...]:
    """Complete the partitions; in slots, put the one first that the slotted oracle finds best.

    The searches minimise the window in continuous time, and rounding to slots can change which is best.
    """
    partitions = list(dict.fromkeys(partition + problem.unsent() for partition in found))
    if options.slot_s is not None:
        partitions.sort(
            key=lambda partition: _window(
                problem, problem.buffers(partition).instance(problem.cost), options.slot_s
            )
        )
    return tuple(partitions)


def _method_of_layered(problem: Problem, options: Options) -> str:
    if _is_contracted(problem, problem.chain_of(problem.sent_by_ready())):
        return f"dynamic program over groups of {CONTRACTED} contiguous runs, heuristic"
    method = "dynamic program over contiguous groups, exact"
    # A cap makes fusion a bin packing, and so does a cost with steps: groups with gaps can be better then.
    cap = options.max_group_bytes
    if problem.cost.line is None or (cap is not None and cap < problem.sizes.sum()):
        method += " among those"
    return method if options.slot_s is None else method + " in continuous time"


def _seeds(
    problem: Problem, classes: list[IntArray], max_group_bytes: int | None, *, layered: bool
) -> Iterator[Partition]:
    """Yield partitions from the exact search, on chains made layered where they are not.

    A chain whose tails are raised to their running maximum is layered and no shorter than the real one; so is
    one in order of tails whose ready times are raised.
    """
    fusers = (_fuse_raised_tails,) if layered else (_fuse_raised_tails, _fuse_raised_releases)
    for factor in LATENCY_FACTORS:
        cost = _with_latency(problem.cost, factor)
        for fuse_class in fusers:
            yield tuple(
                chain.from_iterable(
                    fuse_class(problem, members, cost, max_group_bytes) for members in classes
                )
            )


def _with_latency(cost: CostCurve, factor: float) -> CostCurve:
    if factor == 1.0:
        return cost
    extra = (factor - 1.0) * cost.durations_s[0]
    return CostCurve(
        sizes_bytes=cost.sizes_bytes,
        durations_s=tuple(duration + extra for duration in cost.durations_s),
        slope_beyond=cost.slope_beyond,
    )


def _fuse_raised_tails(
    problem: Problem, members: IntArray, cost: CostCurve, max_group_bytes: int | None
) -> Partition:
    real = problem.chain_of(members)
    raised = replace(real, tail=np.maximum.accumulate(real.tail))
    return _cut(members, _cuts_of(problem, raised, cost, max_group_bytes))


def _fuse_raised_releases(
    problem: Problem, members: IntArray, cost: CostCurve, max_group_bytes: int | None
) -> Partition:
    every = problem.sent_by_tail()
    by_tail = every[np.isin(every, members)]
    real = problem.chain_of(by_tail)
    raised = replace(real, ready=np.maximum.accumulate(real.ready))
    return _cut(by_tail, _cuts_of(problem, raised, cost, max_group_bytes))


def _cuts_of(problem: Problem, layered: Chain, cost: CostCurve, max_group_bytes: int | None) -> list[int]:
    enough = problem.compute_s
    # Only the first of the partitions has to be the optimum; the others are for the realisable plan.
    tolerance = EXACT if cost is problem.cost else RELAXED
    if _is_contracted(problem, layered):
        coarse, starts = layered.contracted(CONTRACTED)
        cuts, _ = best_layered(
            coarse, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=RELAXED
        )
        return [int(starts[cut]) for cut in cuts]
    cuts, _ = best_layered(layered, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=tolerance)
    return cuts


def _is_contracted(problem: Problem, layered: Chain) -> bool:
    """Whether the exact search, quadratic for a cost that is not affine, would take too long."""
    return problem.cost.line is None and len(layered) > CONTRACT_BEYOND


def _improve(problem: Problem, seed: Partition, options: Options) -> tuple[Partition, int]:
    from pace.solver.kernels import search as kernel

    members = problem.sent_by_ready()
    place = {int(gradient): number for number, gradient in enumerate(members)}
    group_of = np.empty(len(members), dtype=np.int64)
    for number, group in enumerate(seed):
        group_of[[place[gradient] for gradient in group]] = number
    ready, tail = problem.ready[members], problem.tail[members]
    by_tail = [place[int(gradient)] for gradient in problem.sent_by_tail()]
    orders = np.stack([np.arange(len(members)), np.array(by_tail)]).astype(np.int64)
    places = np.argsort(orders, axis=1).astype(np.int64)
    bound = max(fusion_bound(problem).bound, layered_bound(problem).bound)
    cap = float(options.max_group_bytes or np.inf)
    _, calls = kernel.improve(
        group_of,
        ready,
        tail,
        problem.sizes[members].astype(np.float64),
        problem.dtypes[members],
        orders,
        places,
        *problem.cost.knots(),
        cap,
        max(bound * (1 + SEARCH_GAP), problem.compute_s),
        options.search_calls,
        SEED,
    )
    by_group: dict[int, list[int]] = {}
    for at in orders[0]:
        by_group.setdefault(int(group_of[at]), []).append(int(members[at]))
    return tuple(tuple(group) for group in by_group.values()), calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No fusion and no order beats `bound`; see ``pace.schedule.FusionBound`` for what it rests on."""

    members: tuple[int, ...]
    line: Line
    min_ready: float
    total_bytes: int
    min_tail: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredBound:
    """No fusion beats `bound`; see ``pace.schedule.ChainBound`` for what it rests on."""

    order: Literal["ready", "tail"]
    line: Line
    bound: float


def layered_bound(problem: Problem) -> LayeredBound:
    """Bound the window of every fusion from below by the exact optimum of a relaxed, layered chain.

    Proof. Take any calls, each carrying bytes of some gradients, and name each by its last gradient on the
    chain, whose ready time and tail it has. Every byte after the k-th of these names is in a later call, so
    the calls from the (k+1)-th on carry at least what they would in the contiguous partition with the same
    last gradients, and they are as many: every suffix's bound is at least that partition's. The critical
    sets of a contiguous partition are suffixes, and ``best_layered`` minimises over those partitions.
    Lowering tails or ready times until the chain is layered, and g to a line below it, only shortens
    windows. On a profile that is layered already and with an affine g, the bound is the optimum.
    """
    best = LayeredBound(order="ready", line=Line(latency_s=0.0, seconds_per_byte=0.0), bound=0.0)
    if not problem.sizes.any():
        return best
    by_ready = problem.chain_of(problem.sent_by_ready())
    chains: list[tuple[Literal["ready", "tail"], Chain]] = [
        ("ready", replace(by_ready, tail=_least_from_here(by_ready.tail)))
    ]
    if not by_ready.is_layered:
        by_tail = problem.chain_of(problem.sent_by_tail())
        chains.append(("tail", replace(by_tail, ready=_least_from_here(by_tail.ready))))
    for line in problem.cost.minorants(float(problem.sizes.sum())):
        curve = CostCurve.affine(line.latency_s, line.seconds_per_byte)
        for order, chain_of_order in chains:
            _, value = best_layered(chain_of_order, curve, enough=0.0)
            if value > best.bound:
                best = LayeredBound(order=order, line=line, bound=value)
    return best


def _least_from_here(values: FloatArray) -> FloatArray:
    return np.minimum.accumulate(values[::-1])[::-1]


def fusion_bound(problem: Problem) -> Bound:
    """Bound the window of every fusion from below (DESIGN 4.3), in O(n log n) for each line under g.

    Bytes priced at a line below g, plus one latency: whatever is sent after the first gradient of a set is
    ready needs at least one call. Preemption and fusion can only add to that.
    """
    from pace.solver.certificate import certify

    sent = problem.sizes > 0
    lines = problem.cost.minorants(float(problem.sizes.sum())) if sent.any() else ()
    best = Bound(
        members=(),
        line=Line(latency_s=0.0, seconds_per_byte=0.0),
        min_ready=0.0,
        total_bytes=0,
        min_tail=0.0,
        bound=0.0,
    )
    for line in lines:
        instance = Instance(
            ready=problem.ready[sent],
            processing=problem.sizes[sent].astype(np.float64) * line.seconds_per_byte,
            tail=problem.tail[sent],
        )
        critical = certify(instance, jackson.solve(instance))
        # Sets of the form {ready >= rho, tail >= theta} suffice (DESIGN 4.3) and are easy to state.
        inside = sent & (problem.ready >= critical.min_ready) & (problem.tail >= critical.min_tail)
        total = int(problem.sizes[inside].sum())
        value = critical.min_ready + line.latency_s + total * line.seconds_per_byte + critical.min_tail
        if value > best.bound:
            best = Bound(
                members=tuple(np.flatnonzero(inside).tolist()),
                line=line,
                min_ready=critical.min_ready,
                total_bytes=total,
                min_tail=critical.min_tail,
                bound=value,
            )
    return best
