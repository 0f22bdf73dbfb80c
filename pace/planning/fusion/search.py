"""Fusion search: which gradients share a buffer (docs/solver.md). The algorithms are in ``pace.solver``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pace.documents.options import Options
from pace.errors import InvalidOptions
from pace.planning.fusion.bounds import Bounds
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem, Grouping, Partition
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.cost_curve import CostCurve
from pace.solver.knob_search import Measured, log_value, places
from pace.solver.knob_search import run as run_search
from pace.solver.one_machine import Instance, solve
from pace.solver.partition import EXACT, Chain, best_fifo, best_layered, max_min_partitions, runs

# The exact search is repeated with scaled latencies, as a preempted group pays the latency more than once.
LATENCY_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# It is repeated as if each call took longer by these multiples of what it does while compute runs, or else of
# this share of the window: its groups need few calls. With many gradients, by every second one.
EXTRA_FACTORS = (1 / 4, 1 / 2, 1.0, 3 / 2, 2.0, 5 / 2, 4.0, 8.0)
EXTRA_SHARE = 0.01
SEARCH_GAP = 1e-3
# The local search tells what it has found after so many calls, and each time that their number has doubled:
# what was found early has fewer groups, which may be better under load.
FIRST_CALLS = 500
RELAXED = 1e-5
CONTRACT_BEYOND = 2000
CONTRACTED = 1000
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionResult:
    """The partitions that the search found.

    Attributes
    ----------
    partitions
        First the best one if preemption were free, then others that may be better with real segments.
    method
        The algorithm, in words.
    of_few_calls
        Seconds by which each call is assumed to take longer than its cost, and partitions found with that.
    """

    partitions: tuple[Partition, ...]
    method: str
    of_few_calls: tuple[tuple[float, Partition], ...] = ()


def fuse(
    problem: FusionProblem,
    options: Options,
    bounds: Bounds | None = None,
    oracle: PricingOracle | None = None,
    extra_s: float = 0.0,
) -> FusionResult:
    """Search for groups by the fusion that `options` names. Pass bounds and oracle to share their results.

    `extra_s` is how much longer a call takes while compute runs; 0 if that is not known.

    The search is on the compute clock, like its problem. If traffic slows compute, each additional call
    lengthens the window. The caller takes this into account when it chooses between the partitions.
    """
    found = _fuse(problem, options, bounds or Bounds(problem), oracle or PricingOracle(options), extra_s)
    if problem.slowdown == 1:
        return found
    return replace(found, method=f"{found.method}; on the compute clock")


def _fuse(
    problem: FusionProblem, options: Options, bounds: Bounds, oracle: PricingOracle, extra_s: float
) -> FusionResult:
    if not problem.sizes.any():
        return FusionResult(partitions=(problem.unsent(),), method="nothing to send, exact")
    if options.fusion == "none":
        found = FusionResult(
            partitions=(_single(problem) + problem.unsent(),), method="one group per gradient"
        )
    elif options.framework is not None:
        return _fuse_for_barrier(problem, options)
    elif options.fusion == "paper":
        found = _fuse_as_paper(problem, options, oracle)
    else:
        found = _fuse_optimally(problem, options, bounds, oracle)
    if options.slot_s is not None:
        return found
    extra_s = extra_s or EXTRA_SHARE * max(problem.compute_s, bounds.best_s)
    return replace(
        found,
        of_few_calls=tuple(
            (factor * extra_s, partition)
            for factor in EXTRA_FACTORS[:: 2 if len(problem.sizes) > CONTRACT_BEYOND else 1]
            for partition in _with_extra(problem, found, options, factor * extra_s)
        ),
    )


def _with_extra(
    problem: FusionProblem, found: FusionResult, options: Options, extra_s: float
) -> Iterator[Partition]:
    """Yield partitions that are good if each call takes `extra_s` longer; the given one if none is sought."""
    if options.fusion != "optimal":
        yield found.partitions[0]
        return
    cost = problem.cost.slower(extra_s)
    for partition in layered_partitions(problem, cost, options.max_group_bytes):
        yield partition + problem.unsent()


def _cut(members: IntArray, cuts: list[int]) -> Partition:
    return tuple(tuple(members[run].tolist()) for run in runs(cuts, len(members)))


def _fuse_as_paper(problem: FusionProblem, options: Options, oracle: PricingOracle) -> FusionResult:
    """Run Algorithm 1 of the PACE paper: evaluate the MaxMinSize partition of every R; the best R wins.

    With several classes of gradients, each gets its own R, one class after another. R stops growing when the
    latency of R calls alone makes the window longer than the best one. With ``search_r="momentum"`` only some
    R are evaluated (see ``by_momentum``).
    """
    classes = [problem.chain_of(members) for members in problem.classes()]
    cuts: list[list[int]] = [[0] for _ in classes]

    def instance(number: int, trial: list[int]) -> Instance:
        return _instance(problem, classes, [*cuts[:number], trial, *cuts[number + 1 :]])

    def price(number: int, trial: list[int]) -> float:
        try:
            return _price(problem, instance(number, trial), oracle, options.slot_s)
        except InvalidOptions:
            trials = max_min_partitions(classes[number].sizes)
            oracle.refuse_too_large(instance(number, each) for each in trials)
            raise

    def best_of_all(number: int) -> list[int]:
        best, found = np.inf, [0]
        for trial in max_min_partitions(classes[number].sizes):
            if _latency_floor(classes[number], len(trial), problem.cost) >= best:
                break
            if not _fits(classes[number], trial, options.max_group_bytes):
                continue
            value = price(number, trial)
            if value < best:
                best, found = value, trial
        return found

    def best_by_momentum(number: int) -> list[int]:
        trials = list(max_min_partitions(classes[number].sizes))
        priced = by_momentum(len(trials), lambda num_groups: price(number, trials[num_groups - 1]))
        return trials[min(priced, key=lambda num_groups: (priced[num_groups], num_groups)) - 1]

    for number in sorted(range(len(classes)), key=lambda k: -int(classes[k].sizes.sum())):
        cuts[number] = best_of_all(number) if options.search_r == "all" else best_by_momentum(number)
    tried = "every number of groups" if options.search_r == "all" else "numbers of groups found by momentum"
    method = f"MaxMinSize for {tried} (Algorithm 1), heuristic"
    if len(classes) > 1:
        method += ", one dtype after another"
    parts = (_cut(members, part) for members, part in zip(problem.classes(), cuts, strict=True))
    return FusionResult(partitions=(tuple(chain(*parts)) + problem.unsent(),), method=method)


def by_momentum(most: int, price: Callable[[int], float], seed: int = SEED) -> dict[int, float]:
    """Search the number of groups, from 1 to `most`, by momentum over its logarithm; return what was priced.

    At most a quarter of all numbers are priced, or four.
    """
    priced: dict[int, float] = {}

    def measure(place: FloatArray) -> Measured:
        num_groups = round(log_value(float(np.clip(place[0], 0, 1)), 1, most))
        if num_groups not in priced:
            priced[num_groups] = price(num_groups)
        return Measured(priced[num_groups])

    run_search(places("momentum", 1, max(most // 4, 4), seed=seed), measure)
    return priced


def _fits(chain_: Chain, cuts: list[int], max_group_bytes: int | None) -> bool:
    if max_group_bytes is None:
        return True
    return all(len(run) == 1 or chain_.sizes[run].sum() <= max_group_bytes for run in runs(cuts, len(chain_)))


def _latency_floor(chain_: Chain, calls: int, cost: CostCurve) -> float:
    """Return a lower bound on the window, in seconds, if the chain is sent in `calls` calls of least cost."""
    busy = calls * float(cost(chain_.sizes.min()))
    return float(chain_.ready.min()) + busy + float(chain_.tail.min())


def _instance(problem: FusionProblem, classes: list[Chain], cuts: list[list[int]]) -> Instance:
    """Return the runs of each class as jobs."""
    parts = [part.fuse(of_part, problem.cost) for part, of_part in zip(classes, cuts, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return Instance(
        ready=np.concatenate([part.ready for part in parts]),
        processing=np.concatenate([part.processing for part in parts]),
        tail=np.concatenate([part.tail for part in parts]),
    )


def _price(problem: FusionProblem, instance: Instance, oracle: PricingOracle, slot_s: float | None) -> float:
    """Return the oracle's window in seconds; with `slot_s` the instance is rounded to slots."""
    stretch_s = problem.stretch_s(float(np.sum(instance.processing)))
    slotted = instance if slot_s is None else instance.in_slots(slot_s)
    return max(oracle.solve(slotted).objective * (slot_s or 1.0), problem.compute_s) + stretch_s


def _continuous_window(problem: FusionProblem, partition: Partition) -> float:
    """Return the window in seconds by longest tail first, as linear programs need slots."""
    instance = problem.buffers(partition).instance(problem.cost)
    stretch_s = problem.stretch_s(float(np.sum(instance.processing)))
    return max(solve(instance).objective, problem.compute_s) + stretch_s


def _fuse_for_barrier(problem: FusionProblem, options: Options) -> FusionResult:
    """Minimize the end of the last all-reduce, first in, first out; only this end matters with a barrier."""
    classes = problem.classes()
    # As for layered chains: otherwise, groups with gaps can be better.
    cap = options.max_group_bytes
    among = "" if problem.cost.line and (cap is None or cap >= problem.sizes.sum()) else " among runs"
    exact = f"exact{among}" if len(classes) <= 1 else "each dtype by itself, heuristic"
    method = f"dynamic program over prefixes, first in first out with a barrier, {exact}"
    if len(classes) == 1:
        chain_ = problem.chain_of(classes[0])
        cuts, _ = best_fifo(chain_, problem.cost, max_group_bytes=cap)
        found = _cut(classes[0], cuts)
    else:
        found = _first_in_first_out(problem, classes, options)
    partition = found + problem.unsent()
    return FusionResult(partitions=(partition,), method=method)


def _fuse_optimally(
    problem: FusionProblem, options: Options, bounds: Bounds, oracle: PricingOracle
) -> FusionResult:
    classes = problem.classes()
    seeds = [
        seed
        for factor in LATENCY_FACTORS
        for seed in layered_partitions(problem, _with_latency(problem.cost, factor), options.max_group_bytes)
    ]
    simple = [_first_in_first_out(problem, classes, options), _single(problem)]
    if problem.is_layered:
        return FusionResult(
            partitions=_with_unsent(problem, [*seeds, *simple], options, oracle),
            method=_method_of_layered(problem, options),
        )
    seeds.sort(key=lambda seed: _continuous_window(problem, seed))
    found, calls = _improve(problem, seeds[0], options, bounds)
    method = f"local search from the dynamic program's groups, {calls} oracle calls, heuristic"
    return FusionResult(
        partitions=_with_unsent(problem, [*reversed(found), *seeds, *simple], options, oracle), method=method
    )


def _first_in_first_out(problem: FusionProblem, classes: list[IntArray], options: Options) -> Partition:
    """Return the groups that end first if each class is sent in order of ready time."""
    parts = []
    for members in classes:
        cuts, _ = best_fifo(problem.chain_of(members), problem.cost, max_group_bytes=options.max_group_bytes)
        parts.append(_cut(members, cuts))
    return tuple(chain(*parts))


def _single(problem: FusionProblem) -> Partition:
    return tuple((int(number),) for number in problem.sent_by_ready())


def _with_unsent(
    problem: FusionProblem, found: list[Partition], options: Options, oracle: PricingOracle
) -> tuple[Partition, ...]:
    """Add the gradients without bytes; with slots, put the partition first that is best in slots.

    The searches minimize the window in continuous time. Rounding to slots can change which partition is best.
    """
    partitions = list(dict.fromkeys(partition + problem.unsent() for partition in found))
    if options.slot_s is not None:
        partitions.sort(
            key=lambda partition: _price(
                problem, problem.buffers(partition).instance(problem.cost), oracle, options.slot_s
            )
        )
    return tuple(partitions)


def _method_of_layered(problem: FusionProblem, options: Options) -> str:
    if _is_contracted(problem, problem.chain_of(problem.sent_by_ready())):
        return f"dynamic program over groups of {CONTRACTED} contiguous runs, heuristic"
    method = "dynamic program over contiguous groups, exact if preemption were free"
    # A size limit makes fusion a bin-packing problem, and so does a cost with steps. Groups with gaps can
    # then be better.
    cap = options.max_group_bytes
    if problem.cost.line is None or (cap is not None and cap < problem.sizes.sum()):
        method += " among those"
    return method if options.slot_s is None else method + " in continuous time"


def layered_partitions(
    problem: FusionProblem, cost: CostCurve, max_group_bytes: int | None
) -> Iterator[Partition]:
    """Yield partitions from the exact search on layered chains.

    A chain that is not layered becomes layered if its tails are raised to their running maximum, or if it is
    put in order of tails and its ready times are raised. Its window is then no shorter than the real one.
    """
    classes = problem.classes()
    fusers = (_fuse_raised_tails, _fuse_raised_releases)
    for fuse_class in fusers[:1] if problem.is_layered else fusers:
        yield tuple(
            chain.from_iterable(fuse_class(problem, members, cost, max_group_bytes) for members in classes)
        )


def _with_latency(cost: CostCurve, factor: float) -> CostCurve:
    return cost if factor == 1.0 else cost.slower((factor - 1.0) * cost.durations_s[0])


def _fuse_raised_tails(
    problem: FusionProblem, members: IntArray, cost: CostCurve, max_group_bytes: int | None
) -> Partition:
    real = problem.chain_of(members)
    raised = replace(real, tail=np.maximum.accumulate(real.tail))
    return _cut(members, _cuts_of(problem, raised, cost, max_group_bytes))


def _fuse_raised_releases(
    problem: FusionProblem, members: IntArray, cost: CostCurve, max_group_bytes: int | None
) -> Partition:
    every = problem.sent_by_tail()
    by_tail = every[np.isin(every, members)]
    real = problem.chain_of(by_tail)
    raised = replace(real, ready=np.maximum.accumulate(real.ready))
    return _cut(by_tail, _cuts_of(problem, raised, cost, max_group_bytes))


def _cuts_of(
    problem: FusionProblem, layered: Chain, cost: CostCurve, max_group_bytes: int | None
) -> list[int]:
    enough = problem.compute_s
    # Only the first partition has to be optimal. The others are candidates for the realizable plan.
    tolerance = EXACT if cost is problem.cost else RELAXED
    if _is_contracted(problem, layered):
        coarse, starts = layered.contracted(CONTRACTED)
        cuts, _ = best_layered(
            coarse, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=RELAXED
        )
        return [int(starts[cut]) for cut in cuts]
    cuts, _ = best_layered(layered, cost, enough=enough, max_group_bytes=max_group_bytes, tolerance=tolerance)
    return cuts


def _is_contracted(problem: FusionProblem, layered: Chain) -> bool:
    """Return whether the exact search, which is quadratic unless the cost is affine, would take too long."""
    return problem.cost.line is None and len(layered) > CONTRACT_BEYOND


def _improve(
    problem: FusionProblem, seed: Partition, options: Options, bounds: Bounds
) -> tuple[list[Partition], int]:
    """Return what a local search has found after more and more oracle calls, and the number of calls."""
    from pace.solver.kernels import search as kernel

    grouping = Grouping.of(problem, seed)
    members = grouping.members
    found: list[Partition] = []
    made = asked = 0
    while made == asked < options.search_calls:
        asked = min(max(2 * made, FIRST_CALLS), options.search_calls)
        _, calls = kernel.improve(
            grouping.group_of,
            problem.ready[members],
            problem.tail[members],
            problem.sizes[members].astype(np.float64),
            problem.dtypes[members],
            grouping.orders,
            grouping.places,
            *problem.cost.knots(),
            float(options.max_group_bytes or np.inf),
            max((bounds.best_s - bounds.stretch_s) * (1 + SEARCH_GAP), problem.compute_s),
            asked - made,
            SEED + len(found),
        )
        made += calls
        found.append(grouping.partition())
    return found, made
