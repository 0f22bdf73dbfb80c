"""In which order a batch of updates reaches the server, and which updates are dropped.

The strict rule keeps every update that it does not drop within its deadline. The paper's Algorithm 2 does
not: it never forces an update whose deadline has passed, forces only one of equal deadlines, counts drops as
positions, and looks one update ahead. It is kept to be audited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import SAME_MOMENT_S, Capacities
from pace_fabric.solver.updates import NO_DEADLINE, Updates

Rule = Literal["strict", "paper"]
Late = Literal["drop", "hold", "pace", "downweight"]
DropReason = Literal["expired", "infeasible", "overtaken", "undeliverable"]
_REASONS: dict[int, DropReason] = {1: "expired", 2: "infeasible", 3: "overtaken", 4: "undeliverable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A dropped update and why.

    Attributes
    ----------
    witness
        For "infeasible" the other updates that want the same positions, for "overtaken" those that commit
        before it, otherwise none.
    """

    update: int
    reason: DropReason
    witness: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Kept updates in two orders, and the dropped ones.

    Attributes
    ----------
    picked
        In the order in which bandwidth is given to them.
    commits
        In the order in which the server commits them.
    end_s
        (n,) when each kept update has arrived; NaN for the others.
    weights
        (n,) factor on each update: below 1 for what is late and downweighted.
    """

    picked: tuple[int, ...]
    commits: tuple[int, ...]
    end_s: FloatArray
    dropped: tuple[Drop, ...]
    weights: FloatArray

    @property
    def commit_s(self) -> FloatArray:
        """When each of `commits` is committed: the server holds what arrives before its turn."""
        at: FloatArray = np.maximum.accumulate(self.end_s[list(self.commits)])
        return at


def order_updates(
    updates: Updates, capacities: Capacities, *, rule: Rule = "strict", late: Late = "drop"
) -> Ordering:
    """Order a batch whose transfers all go directly to the server.

    Parameters
    ----------
    late
        What happens to an update that others would overtake past its deadline. ``drop`` drops it; ``hold``
        has the server hold the others; ``pace`` drops it too, and leaves it to the admission of new
        computations that none is late; ``downweight`` keeps it, and commits it late with the weight
        1 / sqrt(1 + positions late).

    Notes
    -----
    O(n^2) ends for each order tried, and one order more for each drop. Heuristic: the least sum of ends is
    found by ``pace_fabric.solver.search``.
    """
    from pace_fabric.solver.kernels import lists
    from pace_fabric.solver.kernels import ordering as kernel

    updates.require_hosts(capacities)
    n = len(updates)
    order, end = np.empty(n, dtype=np.int64), np.full(n, np.nan)
    fate, witness = np.zeros(n, dtype=np.int64), np.zeros((n, n), dtype=np.bool_)
    modes = {"drop": kernel.DROP, "pace": kernel.DROP, "hold": kernel.HOLD, "downweight": kernel.DOWNWEIGHT}
    capacities = capacities.copy()
    while True:
        state = (capacities.times, capacities.rates, capacities.counts)
        size, host, ready = updates.size, updates.host, updates.ready
        deadline, server = updates.deadline, updates.server
        if rule == "paper":
            kept = lists.paper(*state, size, host, ready, deadline, server, order, end, fate, witness)
        else:
            mode = modes[late]
            kept = kernel.strict(*state, size, host, ready, deadline, server, mode, order, end, fate, witness)
        if kept >= 0:
            break
        capacities.widen()
        witness[:] = False
    picked = tuple(order[:kept].tolist())
    dropped = tuple(
        Drop(update=g, reason=_REASONS[int(fate[g])], witness=tuple(np.flatnonzero(witness[g]).tolist()))
        for g in np.flatnonzero(fate).tolist()
    )
    end[fate != 0] = np.nan
    return settle(updates, picked, end, dropped, late if rule == "strict" else "drop")


def settle(
    updates: Updates, picked: Sequence[int], end_s: FloatArray, dropped: tuple[Drop, ...], late: Late
) -> Ordering:
    """Return the ordering of what was picked: commits by end, or held, or downweighted."""
    commits = by_end(picked, end_s)
    weights = np.ones(len(updates))
    if late == "hold":
        commits = held(picked, end_s, updates.deadline)
    elif late == "downweight":
        for rank, update in enumerate(commits, start=1):
            weights[update] = 1 / np.sqrt(1 + max(0, rank - min(int(updates.deadline[update]), rank)))
    return Ordering(picked=tuple(picked), commits=commits, end_s=end_s, dropped=dropped, weights=weights)


def by_end(picked: Sequence[int], end_s: FloatArray) -> tuple[int, ...]:
    """Return what was picked by its end; of ends that are the same moment, the first picked goes first."""
    ranked: list[int] = []
    for update in picked:
        at = len(ranked)
        while at and end_s[update] < end_s[ranked[at - 1]] - SAME_MOMENT_S:
            at -= 1
        ranked.insert(at, update)
    return tuple(ranked)


def held(picked: Sequence[int], end_s: FloatArray, deadline: IntArray) -> tuple[int, ...]:
    """Return an order of commits that keeps every deadline: by end, except where a deadline forces another.

    There is one, because the order of picking keeps them all.
    """
    waiting = list(by_end(picked, end_s))
    commits: list[int] = []
    while waiting:
        position = len(commits) + 1
        due = sorted(int(deadline[update]) for update in waiting)
        forced = next(
            (limit for count, limit in enumerate(due, start=1) if count == limit - position + 1), NO_DEADLINE
        )
        chosen = next(update for update in waiting if deadline[update] <= forced)
        waiting.remove(chosen)
        commits.append(chosen)
    return tuple(commits)
