"""Gradients in memory that user code keeps: its own tensors, or those that it has once read.

What it does to them counts as if it had done it to ``parameter.grad``, so their values go into a group's
buffer before it is sent, and come back when it is summed.
"""

import torch

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import REFERENCES_FROM_TORCH, FusedGroup, Slot, kept_elsewhere
from pace.runtime.engine.local_parts import local_part
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient


def holds(group: FusedGroup) -> bool:
    """Whether user code keeps what it has put into ``parameter.grad``, sent or not."""
    return group.owned and any(slot.apart or _is_held(slot) for slot in group.slots)


def _is_held(slot: Slot) -> bool:
    """Whether user code keeps what it has put into ``parameter.grad``, and the runtime has not sent it."""
    tensor = slot.assigned
    if tensor is None or tensor.layout is not torch.strided or local_gradient(slot.parameter) is not tensor:
        return False
    return kept_elsewhere(tensor, 2 + REFERENCES_FROM_TORCH)


def fold(group: FusedGroup, *, mean: bool) -> bool:
    """Have user code see in the gradients that it keeps what this rank has computed and not sent yet.

    Returns
    -------
    Whether there was any.

    Raises
    ------
    InvalidUse
        Where sums are wanted: only one rank may contribute what is already summed.
    """
    folded = False
    for slot in group.slots:
        gradient = local_gradient(slot.parameter)
        if gradient is None or gradient is slot.assigned or not slot.base:
            continue
        if not mean:
            raise InvalidUse(
                f"the gradient of {slot.name} is kept while gradients only add up, and op is 'sum':"
                " clear gradients by zero_grad(), or read parameter.grad anew in every step"
            )
        with torch.no_grad():
            part = local_part(gradient)
            local_part(slot.shown).add_(part.to_dense() if part.is_sparse else part)
        set_local_gradient(slot.parameter, None)
        folded = True
    return folded


def take_back(group: FusedGroup) -> None:
    """Take over what user code has made of gradients that lie in its own memory.

    It has put them there, or moved them: ``parameter.grad.data = ...``.
    """
    if not group.resolved or not (group.owned or group.seen):
        return
    with torch.no_grad():
        for slot in group.slots:
            if slot.base:
                slot.take_back()


def follow_assigned(slot: Slot) -> None:
    """Go on in the tensor that user code has put into ``parameter.grad``, if it keeps it."""
    tensor, slot.assigned = slot.assigned, None
    assert tensor is not None
    own = 2 + REFERENCES_FROM_TORCH  # and the caller's variable
    if tensor.layout is torch.strided and kept_elsewhere(tensor, own):
        slot.show_apart(tensor)


def end_owned(group: FusedGroup) -> None:
    """As a step ends: give out what user code keeps of its own memory, and forget memory that it let go."""
    for slot in group.slots:
        if not (slot.apart and slot.base and group.resolved):
            continue
        if kept_elsewhere(slot.shown, 1):
            with torch.no_grad():
                slot.give_out()  # step() may have clipped it
        else:
            slot.show()
    group.owned = any(slot.apart or slot.assigned is not None for slot in group.slots)
