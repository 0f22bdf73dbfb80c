"""Orders that are better than the greedy one: every list for small batches, a local search for larger ones.

A list says in which order updates are given bandwidth, all that is left to each. The most updates are kept
first, then the least sum of commits wins. Unlike the greedy order, a list may let what has arrived wait until
what must commit before it is there.
"""

from itertools import combinations, permutations

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.ordering import Drop, Ordering, order_updates, settle
from pace_fabric.solver.updates import Updates

MOST_ENUMERATED = 7


def search_order(updates: Updates, capacities: Capacities, *, most_tried: int = 20_000) -> Ordering:
    """Return the best list order that was found; never worse than the greedy strict order.

    Parameters
    ----------
    most_tried
        Lists that the local search may try. Up to 7 updates all lists are tried instead, which is exact among
        lists (and equal to the optimum of the linear program on nearly all small batches).
    """
    greedy = order_updates(updates, capacities)
    lists = _Lists(updates, capacities)
    deadline = updates.deadline
    reachable = [
        g for g in range(len(updates)) if deadline[g] >= 1 and np.isfinite(updates.finish(g, capacities))
    ]
    if len(reachable) <= MOST_ENUMERATED:
        best = _enumerate(lists, reachable, list(greedy.picked))
    else:
        best = _improve(lists, _extended(lists, reachable, list(greedy.picked)), most_tried)
    end = np.full(len(updates), np.nan)
    end[best] = lists.ends(np.array(best, dtype=np.int64))
    known = {drop.update: drop for drop in greedy.dropped}
    dropped = tuple(
        _dropped(updates, best, g, known.get(g)) for g in range(len(updates)) if g not in set(best)
    )
    return settle(updates, best, end, dropped, "hold")


def _level(deadline: IntArray, chosen: list[int]) -> int | None:
    """Return the first position up to which more of the chosen updates have to commit than there are."""
    due = sorted(int(deadline[g]) for g in chosen)
    return next((limit for count, limit in enumerate(due, start=1) if count > limit), None)


def _dropped(updates: Updates, kept: list[int], g: int, known: Drop | None) -> Drop:
    """Return why an update is not kept: those that want its positions, or that links cannot carry it."""
    if known is not None and known.reason in ("expired", "undeliverable"):
        return known
    level = _level(updates.deadline, [*kept, g])
    if level is None:
        return Drop(update=g, reason="undeliverable", witness=())
    return Drop(
        update=g,
        reason="infeasible",
        witness=tuple(sorted(other for other in kept if updates.deadline[other] <= level)),
    )


def _extended(lists: "_Lists", reachable: list[int], start: list[int]) -> list[int]:
    """Return a list with what the greedy order drops because others would overtake it."""
    for g in reachable:
        longer = [*start, g]
        if (
            g not in start
            and _level(lists.updates.deadline, longer) is None
            and np.isfinite(lists.sum_of_commits(np.array(longer, dtype=np.int64)))
        ):
            start = longer
    return start


class _Lists:
    """Books lists of updates on scratch copies of the capacities."""

    def __init__(self, updates: Updates, capacities: Capacities) -> None:
        self.updates = updates
        self.capacities = capacities.copy()
        self._allocate()

    def _allocate(self) -> None:
        self._scratch = self.capacities.copy()
        self._pieces = np.empty((2 * self.capacities.times.shape[1], 3))
        self._end = np.empty(len(self.updates))

    def sum_of_commits(self, listed: IntArray) -> float:
        """Return the sum of commits; infinity if a deadline would be missed."""
        from pace_fabric.solver.kernels import lists as kernel

        while True:
            total: float = kernel.place_list(
                self.capacities.times,
                self.capacities.rates,
                self.capacities.counts,
                self.updates.size,
                self.updates.host,
                self.updates.ready,
                self.updates.deadline,
                self.updates.server,
                listed,
                self._scratch.times,
                self._scratch.rates,
                self._scratch.counts,
                self._pieces,
                self._end,
            )
            if total != kernel.FULL:
                return total
            self.capacities.widen()
            self._allocate()

    def ends(self, listed: IntArray) -> FloatArray:
        """Return when each update of a list ends."""
        self.sum_of_commits(listed)
        ends: FloatArray = self._end[listed]
        return ends


def _enumerate(lists: _Lists, updates: list[int], start: list[int]) -> list[int]:
    best, least = start, lists.sum_of_commits(np.array(start, dtype=np.int64))
    for kept in range(len(updates), max(len(start), 1) - 1, -1):
        for chosen in combinations(updates, kept):
            if _level(lists.updates.deadline, list(chosen)) is not None:
                continue
            for order in permutations(chosen):
                total = lists.sum_of_commits(np.array(order, dtype=np.int64))
                if np.isfinite(total) and (kept > len(best) or total < least - 1e-12):
                    best, least = list(order), total
        if len(best) == kept:
            break
    return best


def _improve(lists: _Lists, start: list[int], most_tried: int) -> list[int]:
    """Swap two, or move one elsewhere, as long as that helps."""
    best = np.array(start, dtype=np.int64)
    least = lists.sum_of_commits(best)
    tried = 0
    n = len(best)
    improved = True
    while improved and tried < most_tried:
        improved = False
        for i in range(n):
            for j in range(n):
                if i == j or tried >= most_tried:
                    continue
                candidates = [np.insert(np.delete(best, i), j, best[i])]
                if i < j:
                    swapped = best.copy()
                    swapped[[i, j]] = swapped[[j, i]]
                    candidates.append(swapped)
                for candidate in candidates:
                    tried += 1
                    total = lists.sum_of_commits(candidate)
                    if total < least - 1e-12:
                        best, least, improved = candidate, total, True
    listed: list[int] = best.tolist()
    return listed
