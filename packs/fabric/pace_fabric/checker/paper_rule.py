"""Algorithm 2 of the MLfabric paper, followed again: which updates its rule keeps, in which order.

Rates are arrays that are merged for each transfer; nothing is shared with the solver.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pace_fabric.checker.transfer_bounds import link_rates
from pace_fabric.documents.batch import PendingUpdate, UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.transfer_plan import TransferPlan

# Ends this close together are the same moment; of those, the first update in the batch is taken.
_SAME_MOMENT_S = 1e-9

# Moments and the rate from each on.
_Steps = tuple[NDArray[np.float64], NDArray[np.float64]]


def check_paper_rule(network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan) -> Iterator[str]:
    """Yield where the order and the drops are not those of Algorithm 2."""
    order, dropped = _Follower(network, batch).follow()
    for position, (name, expected) in enumerate(zip(plan.order, order, strict=False), start=1):
        if name != expected:
            yield f'update "{name}" commits at position {position}, by the paper\'s rule "{expected}" does'
            return
    for drop in plan.dropped:
        reason, witness = dropped.get(drop.id, ("none", ()))
        if (drop.reason, drop.witness) != (reason, witness):
            stated, derived = (
                " ".join((why, *names)) for why, names in ((drop.reason, drop.witness), (reason, witness))
            )
            yield f'update "{drop.id}" is dropped as {stated}, the paper\'s rule says {derived}'


class _Follower:
    """The links while Algorithm 2 gives their bandwidth to one update after another."""

    def __init__(self, network: FabricNetwork, batch: UpdateBatch) -> None:
        self._server = network.server
        self._batch = batch
        self._links: dict[tuple[str, str], _Steps] = {
            (way, host.name): _steps(link_rates(host, way))
            for host in network.hosts
            for way in ("up", "down")
        }
        # An end on links that carry less is never earlier.
        self._at_least = {update.id: self._end_s(update) for update in batch.updates}

    def follow(self) -> tuple[list[str], dict[str, tuple[str, tuple[str, ...]]]]:
        """Return the kept updates in order of commits, and the reason and witness of each drop."""
        left = [update for update in self._batch.updates if self._at_least[update.id] < np.inf]
        dropped: dict[str, tuple[str, tuple[str, ...]]] = {
            update.id: ("undeliverable", ()) for update in self._batch.updates if update not in left
        }
        kept: list[tuple[str, float]] = []
        for number in range(1, len(left) + 1):
            update = self._choice(left, number)
            left.remove(update)
            before = dict(self._links)
            end_s = self._reserve(update)
            following = self._choice(left, number + 1) if left else None
            if following is not None and end_s > self._end_s(following) + _SAME_MOMENT_S:
                dropped[update.id] = ("overtaken", (following.id,))
                self._links = before
                continue
            place = len(kept)
            while place and end_s < kept[place - 1][1] - _SAME_MOMENT_S:
                place -= 1
            kept.insert(place, (update.id, end_s))
        return [name for name, _ in kept], dropped

    def _choice(self, left: list[PendingUpdate], number: int) -> PendingUpdate:
        """Return the update whose deadline is this number, or else the one that ends first."""
        if (bound := self._batch.delay_bound) is not None:
            for update in left:
                if update.version + bound - self._batch.version == number:
                    return update
        at_least_s = np.maximum([self._at_least[update.id] for update in left], self._down_s(left))
        ends: dict[int, float] = {}
        first_s = np.inf
        for place in np.argsort(at_least_s).tolist():
            if at_least_s[place] > first_s + _SAME_MOMENT_S:
                break
            ends[place] = self._end_s(left[place])
            first_s = min(first_s, ends[place])
        return left[min(place for place, end_s in ends.items() if end_s <= first_s + _SAME_MOMENT_S)]

    def _down_s(self, left: list[PendingUpdate]) -> NDArray[np.float64]:
        """Return when each update would end if only the server's way down counted, less a little."""
        moments, rates = self._links["down", self._server]
        carried = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(moments))])
        sizes = np.array([0 if update.host == self._server else update.size_bytes for update in left])
        # Infinite where the last rate is 0 and more would be needed.
        last = np.minimum(np.searchsorted(carried, sizes, side="left"), len(carried)) - 1
        places = np.maximum(last, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = moments[places] + (sizes - carried[places]) / rates[places]
        return np.where(sizes > 0, np.nan_to_num(ends, nan=0.0, posinf=np.inf) - _SAME_MOMENT_S, 0.0)

    def _end_s(self, update: PendingUpdate) -> float:
        return self._sent(update)[1]

    def _reserve(self, update: PendingUpdate) -> float:
        """Give an update all that its links have left; return its end."""
        (moments, rates), end_s = self._sent(update)
        for link in (("up", update.host), ("down", self._server)) if len(moments) else ():
            at = np.union1d(self._links[link][0], [*moments, end_s])
            used = np.where(at < end_s, _rates_at((moments, rates), at), 0.0)
            rest = np.maximum(_rates_at(self._links[link], at) - used, 0.0)
            changes = np.concatenate([[True], rest[1:] != rest[:-1]])
            self._links[link] = at[changes], rest[changes]
        return end_s

    def _sent(self, update: PendingUpdate) -> tuple[_Steps, float]:
        """Return an update's rates if it is sent now, and when it has arrived."""
        nothing = np.empty(0)
        if update.host == self._server or not update.size_bytes:
            return (nothing, nothing), update.ready_s
        up, down = self._links["up", update.host], self._links["down", self._server]
        moments = np.union1d(up[0], down[0])
        moments = np.concatenate([[update.ready_s], moments[moments > update.ready_s]])
        rates = np.minimum(_rates_at(up, moments), _rates_at(down, moments))
        carried = np.cumsum(rates[:-1] * np.diff(moments))
        last = int(np.searchsorted(carried, update.size_bytes))
        if not rates[last]:
            return (nothing, nothing), np.inf
        before = carried[last - 1] if last else 0.0
        end_s = float(moments[last] + (update.size_bytes - before) / rates[last])
        return (moments[: last + 1], rates[: last + 1]), end_s


def _steps(rates: list[tuple[float, float]]) -> _Steps:
    moments, values = np.array(rates, dtype=float).T
    return moments, values


def _rates_at(steps: _Steps, moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rate at each moment; nothing before the first."""
    places = np.searchsorted(steps[0], moments, side="right") - 1
    return np.where(places < 0, 0.0, steps[1][places])
