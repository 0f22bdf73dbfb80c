"""The strict ordering rule for several servers; for one server, the plain twin of the compiled rule.

An update has ended when its last shard has, and shards of one update are given bandwidth together, in shard
order.
"""

from dataclasses import dataclass, replace

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import SAME_MOMENT_S, Capacities, Reservation
from pace_fabric.solver.ordering import Drop, Late, Ordering, by_end, settle
from pace_fabric.solver.updates import NO_DEADLINE, Updates


@dataclass
class ShardedServers:
    """Updates whose bytes are spread over several servers.

    Parameters
    ----------
    size
        (updates, servers) bytes.
    host, ready
        (updates,) where each lies, and from when on.
    servers
        Hosts of the servers.
    """

    size: FloatArray
    host: IntArray
    servers: tuple[int, ...]
    capacities: Capacities
    ready: FloatArray

    def shards(self, update: int, capacities: Capacities) -> list[Reservation]:
        """Book an update's shards on `capacities`, in shard order."""
        return [
            capacities.reserve(int(self.host[update]), server, float(size), float(self.ready[update]))
            for server, size in zip(self.servers, self.size[update], strict=True)
        ]

    def finish(self, update: int) -> float:
        """Return when the last shard of an update would end."""
        return max(shard.end_s for shard in self.shards(update, self.capacities.copy()))

    def reserve(self, update: int) -> float:
        """Book all shards of an update; return when the last ends."""
        return max(shard.end_s for shard in self.shards(update, self.capacities))


def order_plainly(placement: ShardedServers, deadline: IntArray, *, late: Late = "drop") -> Ordering:
    """Order by the strict rule. O(n^3) ends in the worst case."""
    n = len(deadline)
    limit = deadline.tolist()
    drops: dict[int, Drop] = {}

    def drop(update: int, reason: str, witness: list[int]) -> None:
        if late == "downweight" and reason != "undeliverable":
            limit[update] = NO_DEADLINE
        else:
            drops[update] = Drop(update=update, reason=reason, witness=tuple(sorted(witness)))  # type: ignore[arg-type]  # literals below

    for update in range(n):
        if placement.finish(update) == np.inf:
            drop(update, "undeliverable", [])
        elif limit[update] < 1:
            drop(update, "expired", [])
    while True:
        here, end = replace(placement, capacities=placement.capacities.copy()), np.full(n, np.nan)
        left = [update for update in range(n) if update not in drops]
        picked: list[int] = []
        excess, lost = None, False
        while left and excess is None:
            among = left
            for k in sorted({limit[update] for update in left} - {NO_DEADLINE}):
                due = [update for update in left if limit[update] <= k]
                slots = k - len(picked)
                if len(due) > slots:
                    excess = due
                    break
                if len(due) == slots:
                    among = due
                    break
            if excess is None:
                update = first_to_end(here, among)
                end[update] = here.reserve(update)
                if end[update] == np.inf:
                    drop(update, "undeliverable", [])
                    lost = True
                    break
                picked.append(update)
                left = [other for other in left if other != update]
        if lost:
            continue
        if excess is not None:
            ends = {update: here.finish(update) for update in excess}
            latest = max(ends.values()) - SAME_MOMENT_S
            worst = [update for update in excess if ends[update] >= latest][-1]
            rivals = [u for u in range(n) if u not in drops and u != worst and limit[u] <= k]
            drop(worst, "infeasible", rivals)
            continue
        ranked = by_end(picked, end)
        overtaken = next((u for u in picked if ranked.index(u) + 1 > limit[u]), None)
        if overtaken is None or late == "hold":
            dropped = tuple(drops[update] for update in sorted(drops))
            updates = Updates(
                size=np.zeros(n), host=np.zeros(n, dtype=np.int64), server=0, deadline=np.array(deadline)
            )
            return settle(updates, picked, end, dropped, late)
        drop(overtaken, "overtaken", list(ranked[: ranked.index(overtaken)]))


def first_to_end(placement: ShardedServers, among: list[int]) -> int:
    """Return the candidate that ends first; of ends that are the same moment the first in the batch."""
    ends = [placement.finish(update) for update in among]
    return next(update for update, end in zip(among, ends, strict=True) if end <= min(ends) + SAME_MOMENT_S)
