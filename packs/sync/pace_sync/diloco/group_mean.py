"""Weighted means over a group of torch.distributed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from pace.errors import CommunicationFailed, InvalidUse, ScheduleMismatch
from pace.runtime.transports.transport import reason_of
from pace_fabric.runtime.commit_log import Vector


class GroupMean:
    """Averages over all ranks of a group, with one all-reduce of float32 numbers on the CPU.

    Give each link of a plan a group of its own: its calls come from a thread of its own.

    Parameters
    ----------
    group
        With a backend for CPU tensors, such as Gloo; the default group unless given.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def all_reduce(self, update: Vector, *, members: int, weight: float = 1.0, name: str = "mean") -> Vector:
        """Return the weighted mean of all ranks' updates; every rank calls in the same order.

        Raises
        ------
        InvalidUse
            When the group has not so many ranks.
        CommunicationFailed
            When another rank has ended, or takes longer than the group's time-out.
        """
        ranks = dist.get_world_size(self._group)
        if ranks != members:
            raise InvalidUse(f"{name}: members is {members}, the group has {ranks} ranks")
        summed = np.empty(len(update) + 1, dtype=np.float32)
        np.multiply(update, np.float32(weight), out=summed[:-1])
        summed[-1] = weight
        with self._failing(name):
            dist.all_reduce(torch.from_numpy(summed), group=self._group)
        with np.errstate(all="ignore"):  # a mean of nothing is NaN
            mean: Vector = np.divide(summed[:-1], summed[-1], out=summed[:-1])
        return mean

    def agree(self, facts: Mapping[str, str]) -> None:
        """Compare facts, by their names, with those of the group's other ranks; every rank calls.

        Raises
        ------
        ScheduleMismatch
            When one differs, on every rank.
        CommunicationFailed
            As in `all_reduce`.
        """
        found: list[Mapping[str, str]] = [{}] * dist.get_world_size(self._group)
        with self._failing("the comparison of ranks"):
            dist.all_gather_object(found, dict(facts), group=self._group)
        for name in facts:
            others = [rank for rank, each in enumerate(found) if each.get(name) != found[0].get(name)]
            if others:
                raise ScheduleMismatch(
                    f"rank {others[0]} of the group has another {name} than rank 0: give every rank the same"
                    " before the first step()"
                )

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of the backend
            rank, ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
            raise CommunicationFailed(
                f"rank {rank} of {ranks}: {what}: another rank has ended or is late: {reason_of(error)}"
            ) from error
