"""Wrappers for some of the ranks, in any order and at the same time as wrappers for all."""

from typing import Any

import torch.distributed as dist

from pace.errors import InvalidUse
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

STEPS = 6


class _Training:
    """A model trained with the members of a process group, on the batches of its rank in the group."""

    def __init__(self, group: Any) -> None:
        self.model = build("conv")
        self.optimizer = wrap(
            "gloo", OPTIMIZERS["sgd"](trainable(self.model)), self.model, process_group=group, timeout_s=20.0
        )
        self._shares = iter(batches("conv", STEPS, self.optimizer.rank))

    def step(self) -> None:
        """Train on the next batch."""
        self.optimizer.zero_grad()
        backward(self.model(*next(self._shares)))
        self.optimizer.step()

    def finish(self) -> Weights:
        """Train to the end and return the weights."""
        trained = weights(self.model)
        self.optimizer.close()
        return trained


def _train_in_groups(rank: int, _size: int) -> Any:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    middle = dist.new_group([1, 2])
    found: dict[str, Weights] = {}
    if rank in (1, 2):
        alone = _Training(middle)
        for _ in range(STEPS):
            alone.step()
        found["middle"] = alone.finish()
        refusal = ""
    else:
        try:
            _Training(middle)
        except InvalidUse as error:
            refusal = str(error)
    trainings = {"half": _Training(halves[rank // 2]), "world": _Training(None)}
    for _ in range(STEPS):
        for training in trainings.values():
            training.step()
    found |= {name: training.finish() for name, training in trainings.items()}
    return found, refusal


def test_groups_of_ranks_train_apart_and_together() -> None:
    """Two of four ranks first, then two pairs at once beside all four: as plain training of the members."""
    ranks = run_ranks(_train_in_groups, 4, timeout_s=200)
    for name, size in {"middle": 2, "half": 2, "world": 4}.items():
        members = [found[name] for found, _ in ranks if name in found]
        plain = train_plainly(Case(steps=STEPS), size)
        assert all(difference(trained, plain) <= 1e-5 for trained in members), name
        assert all(equal_bits(trained, members[0]) for trained in members), name
    for rank, (_, refusal) in enumerate(ranks):
        assert ("only its members wrap an optimizer for it" in refusal) == (rank in (0, 3))
