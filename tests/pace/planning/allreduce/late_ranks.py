"""Windows of ranks that are late, replayed op by op; shares no code with the planner."""

from collections.abc import Iterable, Sequence

import numpy as np

from pace import Profile
from pace.documents.schedule import Schedule


class LateRanks:
    """Random windows of a profile of one stream: every rank has durations of its own.

    Parameters
    ----------
    kind
        "op": each op's duration varies by itself; "rank": all ops of a rank vary together.
    extra_s
        Least and most seconds by which a call takes longer if it starts while a rank computes.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        kind: str,
        extra_s: tuple[float, float],
        jitter: float = 0.05,
        count: int = 16,
    ) -> None:
        random = np.random.default_rng(5)
        place = {op.name: number for number, op in enumerate(profile.ops)}
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        durations = np.array([op.duration_s for op in profile.ops])
        shape = (count, profile.workers, len(durations) if kind == "op" else 1)
        sigma = np.sqrt(np.log1p(jitter**2))
        drawn = durations * np.exp(sigma * random.standard_normal(shape) - sigma**2 / 2)
        end = np.cumsum(drawn, axis=2)
        waiting = [number for number, op in enumerate(profile.ops) if op.waits_for]
        self._needs = [[index[name] for name in profile.ops[op].waits_for] for op in waiting]
        self._parts = [
            drawn[:, :, first:last].sum(axis=2)
            for first, last in zip(waiting, [*waiting[1:], len(durations)], strict=True)
        ]
        self._backward = end[:, :, waiting[0] - 1]
        producers = [place[gradient.producer] for gradient in profile.gradients]
        self._ready = end.max(axis=1)[:, producers]
        self._extra = random.uniform(*extra_s, (count, 1000))

    def of_schedule(self, schedule: Schedule, profile: Profile) -> float:
        """Return the mean window of a schedule's transfers at this profile's costs, in seconds."""
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        groups = [[index[name] for name in group.tensors] for group in schedule.groups]
        sizes = np.array([transfer.size_bytes for transfer in schedule.transfers])
        return self.mean_s(groups, [transfer.group for transfer in schedule.transfers], profile.cost(sizes))

    def mean_s(
        self,
        groups: Sequence[Sequence[int]],
        order: Iterable[int],
        durations: Iterable[float],
        *,
        barrier: bool = False,
    ) -> float:
        """Return the mean window in seconds of calls of these groups, in this order."""
        order = list(order)
        left = np.bincount(order, minlength=len(groups))
        arrival = np.full_like(self._ready, np.inf)
        reached, place = self._backward.copy(), 0
        now = np.zeros(len(self._ready))
        for call, (group, duration) in enumerate(zip(order, durations, strict=True)):
            start = np.maximum(now, self._ready[:, list(groups[group])].max(axis=1))
            while (
                not barrier and place < len(self._needs) and np.isfinite(arrival[:, self._needs[place]]).all()
            ):
                arrived = arrival[:, self._needs[place]].max(axis=1)
                reached = np.maximum(reached, arrived[:, None]) + self._parts[place]
                place += 1
            computing = reached.max(axis=1) > start + 1e-12
            now = start + duration + np.where(computing, self._extra[:, call], 0.0)
            left[group] -= 1
            if left[group] == 0:
                arrival[:, list(groups[group])] = now[:, None]
        if barrier:
            arrival[:] = now[:, None]
        for part, needs in zip(self._parts[place:], self._needs[place:], strict=True):
            reached = np.maximum(reached, arrival[:, needs].max(axis=1)[:, None]) + part
        return float(np.maximum(reached.max(axis=1), now).mean())
