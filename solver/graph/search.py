"""The planner for graphs: buckets, order of compute and how far gathers run ahead, searched for together.

Every candidate is a complete plan, priced to the node with its memory. The search moves one knob at a time
and keeps what is better: first less memory above the budget, then the earlier end. A heuristic with a proven
bound beside it; it always has the program as it is among its candidates, so its plan is never slower than
that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pace.solver.graph.list_schedule import UNLIMITED, ListRules, ListScheduler, PricedPlan
from pace.solver.graph.program import Bucket, Program

LARGEST_STEP = 4
MEMORY_WEIGHT = 1e-3
"""How much slower, as a share, a plan may be for half the memory."""
AHEAD_SHARES = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128)
WINDOWS = (0, 64, 256, 512, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """The rules of list scheduling, and for each class of collectives the most bytes of a bucket."""

    rules: ListRules = field(default_factory=ListRules)
    most_bytes: tuple[int, ...] = ()


def search(program: Program, budget_bytes: int, calls: int) -> PricedPlan:
    """Return the best plan found within so many trials; above the budget only if all of them are."""
    return PlanSearch(program, budget_bytes, calls).run()


@dataclass(slots=True)
class PlanSearch:
    """Plans of a program under a memory budget, the best so far, and how many more may be tried."""

    program: Program
    budget_bytes: int
    calls: int
    scheduler: ListScheduler = field(init=False)
    as_it_is: PricedPlan = field(init=False)
    classes: tuple[tuple[int, ...], ...] = field(init=False)
    best: PricedPlan | None = None
    knobs: PlanChoice = field(default_factory=PlanChoice)
    tried: set[PlanChoice] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scheduler = ListScheduler(self.program, self.budget_bytes)
        self.as_it_is = self.scheduler.as_it_is()
        self.classes = tuple(fusible(self.scheduler))
        self.knobs = PlanChoice(most_bytes=(0,) * len(self.classes))

    def run(self) -> PricedPlan:
        """Search until no knob helps or the calls are spent."""
        self.best = self.as_it_is
        self._try(self.knobs)
        improved = True
        while improved and self.calls > 0:
            improved = False
            for moves in (self._ahead, self._windows, self._sizes):
                for knobs in moves():
                    improved |= self._try(knobs)
        assert self.best is not None
        return self.best

    def _try(self, knobs: PlanChoice) -> bool:
        if knobs in self.tried or self.calls <= 0:
            return False
        self.tried.add(knobs)
        self.calls -= 1
        buckets = [
            bucket
            for members, most in zip(self.classes, knobs.most_bytes, strict=True)
            for bucket in cut(self.program, members, most)
        ]
        outcome = self.scheduler.plan(buckets, knobs.rules)
        if self.best is None or self._cost(outcome) < self._cost(self.best):
            self.best, self.knobs = outcome, knobs
            return True
        return False

    def _cost(self, outcome: PricedPlan) -> tuple[int, float]:
        """Return what is over budget, and the end, a little later for more memory."""
        share = outcome.peak_bytes / max(1, self.as_it_is.peak_bytes)
        return max(0, outcome.peak_bytes - self.budget_bytes), outcome.end_s * (1 + MEMORY_WEIGHT * share)

    def _ahead(self) -> Iterator[PlanChoice]:
        total = int(self.program.output_bytes[list(self.scheduler.gathers)].sum())
        for share in (0.0, *AHEAD_SHARES):
            most = int(total * share) if share else UNLIMITED
            yield replace(self.knobs, rules=replace(self.knobs.rules, most_ahead_bytes=most))
        for factor in (0.7, 1.4):
            most = self.knobs.rules.most_ahead_bytes
            if most < UNLIMITED:
                yield replace(
                    self.knobs, rules=replace(self.knobs.rules, most_ahead_bytes=int(most * factor))
                )

    def _windows(self) -> Iterator[PlanChoice]:
        for window in WINDOWS:
            for by_tail in (False, True)[: 1 if window == 0 else 2]:
                yield replace(self.knobs, rules=replace(self.knobs.rules, window=window, by_tail=by_tail))

    def _sizes(self) -> Iterator[PlanChoice]:
        for number, members in enumerate(self.classes):
            sizes = self.program.input_bytes[list(members)]
            largest, total = int(sizes.max(initial=0)), int(sizes.sum())
            smallest = max(1, int(sizes.min(initial=1)))
            steps = [0]
            most = max(2 * smallest, largest // 64)
            while most < total:
                steps.append(most)
                most *= LARGEST_STEP
            current = self.knobs.most_bytes[number]
            steps += [current // 2, current * 2]
            for most in steps:
                chosen = list(self.knobs.most_bytes)
                chosen[number] = most
                yield replace(self.knobs, most_bytes=tuple(chosen))


def fusible(scheduler: ListScheduler) -> Iterator[tuple[int, ...]]:
    """Yield the classes of collectives that may always share buckets: of one key, sources or sinks.

    Sources come in order of first use, sinks in order of readiness.
    """
    program = scheduler.program
    sources = [node for node in scheduler.sources if node not in scheduler.sinks or node in scheduler.gathers]
    sinks = [node for node in scheduler.sinks if node not in sources]
    sources.sort(key=lambda node: (int(scheduler.first_use[node]), node))
    for nodes in (sources, sinks):
        for key in np.unique(program.key[nodes]).tolist() if nodes else ():
            members = tuple(node for node in nodes if program.key[node] == key)
            if len(members) > 1:
                yield members


def cut(program: Program, members: tuple[int, ...], most_bytes: int) -> Iterator[Bucket]:
    """Yield buckets of neighbors that have no more bytes together; what is larger stays alone."""
    bucket: list[int] = []
    total = 0
    for member in members:
        size = int(program.input_bytes[member])
        if bucket and total + size > most_bytes:
            if len(bucket) > 1:
                yield tuple(bucket)
            bucket, total = [], 0
        bucket.append(member)
        total += size
    if len(bucket) > 1:
        yield tuple(bucket)
