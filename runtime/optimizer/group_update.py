"""Applies the user's optimizer to one group at a time, with the hyper-parameters of the last ``step()``."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import (
    REFERENCES_FROM_TORCH,
    FusedGroup,
    Slot,
    as_part_of,
    dense,
    kept_elsewhere,
    local_part,
)
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient, without_gates
from pace.runtime.gates.guarded_tensors import in_transform
from pace.runtime.gates.optimizer_methods import step_was_replaced, unhooked, update_rule
from pace.runtime.gates.patches import set_frame_evaluation

# Optimizers that update each parameter from its own gradient and state alone, so that any subset of
# parameters can be updated at any time. Adafactor and Muon use a whole parameter, but never two.
_PER_PARAMETER = frozenset(
    update_rule(getattr(torch.optim, name))
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


# Those of them that use more than one element at a time.
_PER_WHOLE = frozenset(
    update_rule(getattr(torch.optim, name)) for name in ("Adafactor", "Muon") if hasattr(torch.optim, name)
)


def full_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of an optimizer's class with its module: libraries have others of the same name."""
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def why_not_per_group(optimizer: torch.optim.Optimizer) -> str | None:
    """Return why this optimizer's update cannot be applied group by group, or None if it can."""
    rule = update_rule(type(optimizer))
    if step_was_replaced(optimizer):
        return f"the step of this {type(optimizer).__name__} was replaced by another function"
    if rule not in _PER_PARAMETER:
        return f"{full_name(optimizer)} is not known to update each parameter from its own gradient alone"
    sharded = (hasattr(each, "placements") for group in optimizer.param_groups for each in group["params"])
    if rule in _PER_WHOLE and any(sharded):
        return (
            f"{type(optimizer).__name__} communicates with the ranks that hold other shards of a parameter,"
            " so all ranks must update in the same order"
        )
    return None


class TwinOptimizer:
    """A copy of the user's optimizer that updates some parameters, with the hyper-parameters of ``snapshot``.

    It shares everything with the user's optimizer except the list of parameter groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._step = unhooked(type(optimizer))
        self._twin: torch.optim.Optimizer = object.__new__(type(optimizer))
        self._hyper: list[dict[str, Any]] = []

    def states(self) -> list[dict[str, Any]]:
        """Return the state of each parameter, without waiting for pending updates."""
        return list(dict.values(self._optimizer.state))

    def owners(self) -> dict[torch.Tensor, int]:
        """Return the index of each parameter's group."""
        return {
            parameter: index
            for index, param_group in enumerate(self._optimizer.param_groups)
            for parameter in param_group["params"]
        }

    def snapshot(self) -> None:
        """Save the current hyper-parameters, and the attributes that a GradScaler sets for a fused update."""
        self._hyper = [
            {key: _kept(value) for key, value in param_group.items() if key != "params"}
            for param_group in self._optimizer.param_groups
        ]
        attributes = self._twin.__dict__
        attributes.clear()
        attributes.update(self._optimizer.__dict__)
        for name in SCALING:
            if name in attributes:
                attributes[name] = _kept(attributes[name])

    def step(self, members: Mapping[int, Sequence[torch.Tensor]], state: Any = None) -> None:
        """Update tensors with the hyper-parameters of parameter groups.

        Parameters
        ----------
        members
            The tensors to update, by the index of their parameter group.
        state
            The state of each tensor (default: the state of the user's optimizer).
        """
        self._twin.param_groups = [
            self._hyper[index] | {"params": list(tensors)} for index, tensors in members.items()
        ]
        if state is not None:
            self._twin.state = state
        self._step(self._twin)

    def release(self) -> None:
        """Refer to nothing of the user's optimizer's, such as its state, which another wrapper may watch."""
        self._twin.__dict__.clear()

    def blank_state(self, tensor: torch.Tensor, owner: int) -> dict[str, Any]:
        """Return the state that the optimizer creates in a first step with a zero gradient.

        Parameters
        ----------
        owner
            The index of the tensor's parameter group.
        """
        scratch = torch.zeros_like(tensor)
        scratch.grad = torch.zeros_like(tensor)
        self.snapshot()
        made = self.new_state()
        with without_gates(), plain_mode(tensor.device.type):
            self.step({owner: [scratch]}, state=made)
        found: dict[str, Any] = made[scratch]
        return found

    @staticmethod
    def new_state() -> Any:
        """Return an empty state, like that of a new optimizer."""
        return defaultdict(dict)


class GroupUpdate(TwinOptimizer):
    """Updates the parameters of one group at a time.

    State, for example momentum, is that of the user's optimizer: the same tensors under the same keys.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Sequence[FusedGroup]) -> None:
        super().__init__(optimizer)
        owner = self.owners()
        self._members: list[list[tuple[int, list[Slot]]]] = []
        for group in groups:
            by_owner: dict[int, list[Slot]] = {}
            for slot in group.slots:
                by_owner.setdefault(owner[slot.parameter], []).append(slot)
            self._members.append(sorted(by_owner.items(), key=lambda item: item[0]))

    def apply(self, group: int) -> None:
        """Update the parameters of a group from the gradients in its buffer."""
        members = {index: [slot.parameter for slot in slots] for index, slots in self._members[group]}
        with gradients_in_place([slot for _, slots in self._members[group] for slot in slots]):
            self.step(members)


# What a GradScaler sets on an optimizer whose fused update divides by the scale itself.
SCALING = ("grad_scale", "found_inf")


def _kept(value: Any) -> Any:
    # Tensors are changed in place: a learning rate or betas by the loop, a scale by GradScaler.update().
    if type(value) in (tuple, list):
        return type(value)(_kept(each) for each in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def gradients_in_place(slots: Sequence[Slot]) -> Iterator[None]:
    """Set each parameter's torch gradient to the reduced gradient, or to None if there is none."""
    placed = {slot: as_part_of(_laid_out(slot), slot.parameter) for slot in slots if slot.present}
    for slot in slots:
        set_local_gradient(slot.parameter, placed.get(slot))
    try:
        with without_gates():
            yield
    finally:
        for slot in slots:
            left = local_gradient(slot.parameter)
            if left is not placed.get(slot):  # the optimizer, or a hook of its step, cleared or replaced it
                slot.forget()
                if left is not None:
                    slot.release_kept()
                    with torch.no_grad():
                        slot.view.copy_(local_part(left))
                    slot.base = slot.present = True
            set_local_gradient(slot.parameter, None)
            if slot.apart and slot.base and slot.fused.resolved:
                with torch.no_grad():
                    slot.give_out()  # the optimizer, or a wrapper of its step(), may have changed it


def take_existing(slot: Slot) -> None:
    """Keep a gradient that existed before, in its own memory; later gradients are added to it."""
    gradient = local_gradient(slot.parameter)
    if gradient is not None:
        if gradient.layout is torch.strided and kept_elsewhere(gradient, 1 + REFERENCES_FROM_TORCH):
            slot.show_apart(gradient)
        gradient = local_part(gradient)
        with torch.no_grad():
            slot.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        set_local_gradient(slot.parameter, None)
        slot.base = slot.present = True


def _laid_out(slot: Slot) -> torch.Tensor:
    """Return the gradient with the parameter's current strides; the memory format may have changed."""
    view, part = slot.view, local_part(slot.parameter)
    if view.stride() == part.stride() or not dense(part):
        return view
    return torch.empty_like(part, memory_format=torch.preserve_format).copy_(view)


@contextlib.contextmanager
def plain_mode(device: str) -> Iterator[None]:
    """Switch off the modes that a forward pass may have switched on before it uses a parameter.

    Optimizer state created in inference mode could never be updated outside it. And an update must not become
    part of a ``torch.func`` transform, a trace, a mode or a CUDA graph of the forward pass.

    Raises
    ------
    InvalidUse
        If a CUDA graph is being captured, because each replay would apply the update again.
    """
    with contextlib.ExitStack() as undone:
        undone.callback(set_frame_evaluation, set_frame_evaluation(None))
        if device == "cuda" and torch.cuda.is_current_stream_capturing():
            raise InvalidUse(
                "a CUDA graph is being captured while updates are pending: call synchronize() before it"
            )
        if in_transform():
            undone.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack():
            undone.enter_context(_disable_current_modes())
        if torch._C._get_tracing_state() is not None:
            undone.enter_context(_not_tracing())
        if torch.is_autocast_enabled(device):
            undone.enter_context(torch.autocast(device, enabled=False))
        with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
            yield


@contextlib.contextmanager
def _not_tracing() -> Iterator[None]:
    set_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]  # not in torch's stubs
    state = torch._C._get_tracing_state()
    set_state(None)
    try:
        yield
    finally:
        set_state(state)
