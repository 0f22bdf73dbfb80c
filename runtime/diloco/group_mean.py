"""Weighted means over a group of torch.distributed."""

import numpy as np
import torch
import torch.distributed as dist

from pace.errors import InvalidUse
from pace.runtime.fabric.commit_log import Vector


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
        """
        ranks = dist.get_world_size(self._group)
        if ranks != members:
            raise InvalidUse(f"{name}: members is {members}, the group has {ranks} ranks")
        summed = torch.from_numpy(np.append(update * np.float32(weight), np.float32(weight)))
        dist.all_reduce(summed, group=self._group)
        mean: Vector = (summed[:-1] / summed[-1]).numpy()
        return mean
