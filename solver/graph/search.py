"""The planner for graphs: it searches for buckets, the order of compute and how far gathers run ahead.

It starts from a few orders of the program (``pace.solver.graph.base_orders``).

Every candidate is a complete plan with its time and memory. The search changes one setting at a time and
keeps the better plan: first the one with less memory above the budget, then the one that ends earlier. This
is a heuristic; ``pace.solver.graph.bounds`` tells how far from optimal its plan may be. The unchanged program
is one of the candidates, so the plan is never slower than that.

Of small programs, all plans are compared (``pace.solver.graph.enumeration``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pace.solver.arrays import IntArray
from pace.solver.graph.base_orders import NUM_WITHOUT_DEFERRED, base_orders
from pace.solver.graph.enumeration import fastest_plan, leanest_plan
from pace.solver.graph.filled_waits import with_filled_waits
from pace.solver.graph.list_schedule import (
    LONGEST_QUEUE,
    UNLIMITED,
    ListRules,
    ListScheduler,
    PricedPlan,
    priced,
)
from pace.solver.graph.program import Bucket, Program
from pace.solver.graph.reorder import with_late_waits

LARGEST_STEP = 4
MEMORY_WEIGHT = 1e-3
"""By what share of its time a plan may be slower if it needs half the memory."""
DEFERRED_WEIGHT = 2e-3
"""By what share of its time a plan may be slower that defers no ops, as these keep memory in use for long."""
UNQUEUED_WEIGHT = 3e-2
"""How much slower a plan may be whose wires always have the next collective queued, as a share of its time.

A wire without a queue idles if compute is later than predicted.
"""
LONGEST_WEIGHT = 2e-2
"""By what share of its time a plan may be slower if its longest collective takes no time.

Times of collectives vary, and those of many short ones even out.
"""
TIGHT = 5e-3
"""The memory budget is tight if it exceeds the peak of the unchanged program by at most this share.

The search then starts without queues, because they take memory.
"""
AHEAD_SHARES = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128)
MOST_NODES = 32
"""Up to so many nodes, all plans are compared, if that takes no more states than the next number."""
MOST_STATES = 2_000
MOST_NODES_AGAIN = 128
"""Up to so many nodes, plans are searched within less memory, too, unless all were compared."""
LESS_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""The shares of the memory for these searches."""
SOME_PLANS = "heuristic: some of all orders and buckets"
SAME_TIME = 1e-10
"""By what share of its time a plan may be slower and count as equally fast."""
WINDOWS = (0, 64, 256, 512, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """The settings of one plan.

    Attributes
    ----------
    order
        Number of the order that list scheduling starts from; 0 is the program's own.
    most_bytes
        The largest bucket of each class of collectives, in bytes.
    """

    order: int = 0
    rules: ListRules = field(default_factory=ListRules)
    most_bytes: tuple[int, ...] = ()


def search(program: Program, budget_bytes: int, calls: int) -> PricedPlan:
    """Return the best plan found in at most `calls` trials, and for a small program the best of all plans.

    One more trial fills waits. The plan exceeds the budget only if all plans do that were tried. If the
    budget is tight, the unchanged program's peak is tried as the budget, too, and for programs of up to
    ``MOST_NODES_AGAIN`` nodes smaller budgets: with less memory, a search may find a faster plan.
    """
    small = len(program) <= MOST_NODES
    if small:
        found = _exact(program, ListScheduler(program, budget_bytes).as_it_is(), budget_bytes)
        if found.num_states is not None:
            return found
    first = PlanSearch(program, budget_bytes, calls)
    found = first.run()
    own_bytes = first.as_it_is.peak_bytes
    if own_bytes < budget_bytes <= (1 + TIGHT) * own_bytes:
        found = _better(found, PlanSearch(program, own_bytes, calls).run(), budget_bytes)
    found = _waiting_late(program, found, budget_bytes)
    found = _exact(program, found, budget_bytes) if small else found
    if found.num_states is not None or len(program) > MOST_NODES_AGAIN:
        return found
    most_bytes = min(budget_bytes, found.peak_bytes)
    for less_bytes in (int(share * most_bytes) for share in LESS_SHARES):
        less = PlanSearch(program, less_bytes, calls).run()
        less = _exact(program, less, less_bytes) if small else less
        if small:  # not all plans within the budget itself
            less = replace(less, method=SOME_PLANS, num_states=None)
        found = _better(found, less, budget_bytes)
    return found


def _better(found: PricedPlan, other: PricedPlan, budget_bytes: int) -> PricedPlan:
    """Return the plan that exceeds the budget less, and of equal ones the faster."""
    excess, others = (max(0, each.peak_bytes - budget_bytes) for each in (found, other))
    faster = other.end_s < found.end_s * (1 - SAME_TIME)
    return other if others < excess or (others == excess and faster) else found


def _waiting_late(program: Program, found: PricedPlan, budget_bytes: int) -> PricedPlan:
    """Return a plan with late waits if it is as fast, and within the budget."""
    later = priced(program, with_late_waits(program, found.plan), found.method)
    fits = later.peak_bytes <= max(budget_bytes, found.peak_bytes)
    return later if fits and later.end_s <= found.end_s * (1 + SAME_TIME) else found


def _exact(program: Program, found: PricedPlan, budget_bytes: int) -> PricedPlan:
    """Return the fastest plan within a budget, and of equally fast ones the leanest that is soon found.

    Without any plan within the budget, it is the leanest plan. If there are too many plans to compare, it is
    the best one found, or `found`, and `num_states` is None.
    """
    if found.peak_bytes > budget_bytes:
        lean = leanest_plan(program, MOST_STATES)
        if lean.plan is not None:
            least = priced(program, lean.plan, "heuristic: least memory")
            found = min(found, least, key=lambda each: each.peak_bytes)
        if found.peak_bytes > budget_bytes:
            return replace(found, num_states=lean.num_states) if lean.is_complete else found
    every = fastest_plan(program, budget_bytes, found.end_s, MOST_STATES)
    if every.plan is not None:
        found = priced(program, every.plan, SOME_PLANS)
    if not every.is_complete:
        return found
    as_fast = found.end_s * (1 + SAME_TIME)
    left = MOST_STATES - every.num_states
    while left > 0:
        leaner = fastest_plan(program, found.peak_bytes - 1, as_fast, left)
        if leaner.plan is None:
            break
        found = priced(program, leaner.plan, found.method)
        left -= leaner.num_states
    return replace(found, method="exact: all orders and buckets", num_states=every.num_states)


@dataclass(slots=True)
class PlanSearch:
    """A search for plans of a program under a memory budget; `calls` is how many more may be tried.

    Attributes
    ----------
    schedulers
        One for each of the orders of the program that the search starts from, its own first.
    classes
        Of each scheduler, the classes of collectives that may share buckets.
    """

    program: Program
    budget_bytes: int
    calls: int
    orders: tuple[IntArray, ...] = field(init=False)
    schedulers: tuple[ListScheduler, ...] = field(init=False)
    as_it_is: PricedPlan = field(init=False)
    classes: tuple[tuple[tuple[int, ...], ...], ...] = field(init=False)
    num_base_orders: int = field(init=False)
    best: PricedPlan | None = None
    best_cost: tuple[int, bool, float] = (0, False, 0.0)
    knobs: PlanChoice = field(default_factory=PlanChoice)
    tried: set[PlanChoice] = field(default_factory=set)

    def __post_init__(self) -> None:
        own = ListScheduler(self.program, self.budget_bytes)
        self.as_it_is = own.as_it_is()
        self.orders = tuple(base_orders(own))
        others = (self.program.in_order(order) for order in self.orders[1:])
        self.schedulers = (own, *(ListScheduler(each, self.budget_bytes) for each in others))
        self.classes = tuple(tuple(fusible(each)) for each in self.schedulers)
        self.num_base_orders = len(self.orders)
        # Queues take memory: without any to spare, the search adds them last.
        spare = self.budget_bytes > (1 + TIGHT) * self.as_it_is.peak_bytes
        queued = LONGEST_QUEUE if spare else 0
        self.knobs = PlanChoice(rules=ListRules(queued=queued), most_bytes=(0,) * len(self.classes[0]))

    def run(self) -> PricedPlan:
        """Search until no change helps or no calls are left; return the best plan."""
        self.best = self.as_it_is
        # Its queues are not known: any plan that is faster counts as better.
        never = replace(self.best, unqueued_s=self.best.end_s * self.program.num_wires)
        self.best_cost = self._cost(never, 0)
        self._try(self.knobs)
        improved = True
        while improved and self.calls > 0:
            improved = False
            for moves in (
                self._orders,
                self._ahead,
                self._sizes,
                self._orders,
                self._windows,
                self._queues,
                self._filled,
                self._finer,
            ):
                for knobs in moves():
                    improved |= self._try(knobs)
        assert self.best is not None
        return self.best

    def _try(self, knobs: PlanChoice) -> bool:
        if knobs in self.tried or self.calls <= 0:
            return False
        self.tried.add(knobs)
        self.calls -= 1
        scheduler = self.schedulers[knobs.order]
        buckets = [
            bucket
            for members, most in zip(self.classes[knobs.order], knobs.most_bytes, strict=True)
            for bucket in cut(scheduler.program, members, most)
        ]
        outcome = scheduler.plan(buckets, knobs.rules)
        cost = self._cost(outcome, knobs.order)
        if self.best is None or cost < self.best_cost:
            order = self.orders[knobs.order]
            self.best = replace(outcome, plan=outcome.plan.of(order), peak_node=int(order[outcome.peak_node]))
            self.best_cost, self.knobs = cost, knobs
            return True
        return False

    def _orders(self) -> Iterator[PlanChoice]:
        for order in range(len(self.orders)):
            yield replace(self.knobs, order=order)

    def _cost(self, outcome: PricedPlan, order: int) -> tuple[int, bool, float]:
        """Return what is compared: first the bytes above the budget, then the end, with small penalties.

        A plan that is slower than the program as it is counts as worse, whatever else speaks for it.
        """
        share = MEMORY_WEIGHT * outcome.peak_bytes / max(1, self.as_it_is.peak_bytes)
        share += UNQUEUED_WEIGHT * outcome.unqueued_s / max(1e-300, outcome.end_s * self.program.num_wires)
        share += LONGEST_WEIGHT * outcome.longest_s / max(1e-300, outcome.end_s)
        share += DEFERRED_WEIGHT * (order >= NUM_WITHOUT_DEFERRED)
        is_slower = outcome.end_s > self.as_it_is.end_s * (1 + SAME_TIME)
        return max(0, outcome.peak_bytes - self.budget_bytes), is_slower, outcome.end_s * (1 + share)

    def _ahead(self) -> Iterator[PlanChoice]:
        total = int(self.program.output_bytes[list(self.schedulers[0].gathers)].sum())
        for share in (0.0, *AHEAD_SHARES):
            most = int(total * share) if share else UNLIMITED
            yield replace(self.knobs, rules=replace(self.knobs.rules, most_ahead_bytes=most))

    def _queues(self) -> Iterator[PlanChoice]:
        for queued in reversed(range(LONGEST_QUEUE + 1)):
            yield replace(self.knobs, rules=replace(self.knobs.rules, queued=queued))

    def _filled(self) -> Iterator[PlanChoice]:
        """Yield the order of the best plan with ops moved to where it waits."""
        if len(self.orders) > self.num_base_orders or self.best is None:
            return
        own, order = self.schedulers[0], self.orders[self.knobs.order]
        filled = with_filled_waits(own, self.best.plan, order, self.budget_bytes)
        if filled is not None:
            scheduler = ListScheduler(self.program.in_order(filled), self.budget_bytes)
            self.orders += (filled,)
            self.schedulers += (scheduler,)
            self.classes += (tuple(fusible(scheduler)),)
            self.calls += 1
            yield replace(self.knobs, order=len(self.orders) - 1)

    def _finer(self) -> Iterator[PlanChoice]:
        for factor in (0.7, 1.4):
            most = self.knobs.rules.most_ahead_bytes
            if most < UNLIMITED:
                yield replace(
                    self.knobs, rules=replace(self.knobs.rules, most_ahead_bytes=int(most * factor))
                )
        for number in range(len(self.classes[0])):
            current = self.knobs.most_bytes[number]
            for most in (current // 2, current * 2):
                yield self._of_size(number, most)

    def _windows(self) -> Iterator[PlanChoice]:
        for window in WINDOWS:
            for by_tail in (False, True)[: 1 if window == 0 else 2]:
                yield replace(self.knobs, rules=replace(self.knobs.rules, window=window, by_tail=by_tail))

    def _sizes(self) -> Iterator[PlanChoice]:
        for number, members in enumerate(self.classes[0]):
            sizes = self.program.input_bytes[list(members)]
            total = int(sizes.sum())
            most = max(2 * int(sizes.min(initial=1)), int(sizes.max(initial=0)) // 64, 1)
            yield self._of_size(number, 0)
            while most < total:
                yield self._of_size(number, most)
                most *= LARGEST_STEP
            yield self._of_size(number, total)

    def _of_size(self, number: int, most_bytes: int) -> PlanChoice:
        """Return the current choice with buckets of one class of at most `most_bytes`."""
        chosen = list(self.knobs.most_bytes)
        chosen[number] = most_bytes
        return replace(self.knobs, most_bytes=tuple(chosen))


def fusible(scheduler: ListScheduler) -> Iterator[tuple[int, ...]]:
    """Yield the classes of collectives that may always share buckets: the sources or the sinks of one key.

    Sources are in order of first use, sinks in program order.
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
    """Yield buckets of neighbors of at most `most_bytes` together; larger collectives stay alone."""
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
