"""Applies the user's optimizer to one group at a time, as it stood when ``step()`` was called."""

from collections.abc import Sequence
from typing import Any

import torch

from pace.runtime.buffers import FusedGroup, Slot


def _unhooked(kind: type[torch.optim.Optimizer]) -> Any:
    # Optimizer.__init__ wraps the class's step for profiling and hooks, once a class.
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


# Their step updates each parameter from its own gradient and state alone, so that any subset of the
# parameters may be updated at any time. Adafactor and Muon look at a whole parameter, never at two.
_PER_PARAMETER = frozenset(
    _unhooked(getattr(torch.optim, name))
    for name in (
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
    if hasattr(torch.optim, name)
)


def why_not_per_group(optimizer: torch.optim.Optimizer) -> str | None:
    """Say why this optimizer's update cannot be applied group by group; None when it can."""
    if _unhooked(type(optimizer)) not in _PER_PARAMETER:
        return f"{type(optimizer).__name__} is not known to update each parameter from its own gradient alone"
    if optimizer._optimizer_step_post_hooks:
        return "it has step post-hooks, which expect all parameters to be updated"
    return None


class GroupUpdate:
    """Updates the parameters of one group with the hyper-parameters of the last ``snapshot``.

    State (momentum and the like) is the user's optimizer's own: the same tensors under the same keys.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Sequence[FusedGroup]) -> None:
        self._optimizer = optimizer
        self._step = _unhooked(type(optimizer))
        # A twin that shares everything with the user's optimizer but the list of parameter groups.
        self._twin: torch.optim.Optimizer = object.__new__(type(optimizer))
        owner = {
            parameter: index
            for index, param_group in enumerate(optimizer.param_groups)
            for parameter in param_group["params"]
        }
        self._members: list[list[tuple[int, list[Slot]]]] = []
        for group in groups:
            by_owner: dict[int, list[Slot]] = {}
            for slot in group.slots:
                by_owner.setdefault(owner[slot.parameter], []).append(slot)
            self._members.append(sorted(by_owner.items(), key=lambda item: item[0]))
        self._hyper: list[dict[str, Any]] = []

    def snapshot(self) -> None:
        """Keep the hyper-parameters now in force."""
        self._hyper = [
            {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in param_group.items()
                if key != "params"
            }
            for param_group in self._optimizer.param_groups
        ]
        self._twin.__dict__.update(self._optimizer.__dict__)

    def apply(self, group: int) -> None:
        """Update the parameters of a group from the gradients in its buffer."""
        shown = []
        param_groups = []
        for index, slots in self._members[group]:
            for slot in slots:
                shown.append((slot.parameter, slot.parameter.grad))
                slot.parameter.grad = None if slot.skip else slot.view
            param_groups.append(self._hyper[index] | {"params": [slot.parameter for slot in slots]})
        self._twin.param_groups = param_groups
        try:
            self._step(self._twin)
        finally:
            for parameter, gradient in shown:
                parameter.grad = gradient
