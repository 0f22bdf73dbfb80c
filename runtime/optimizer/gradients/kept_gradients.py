"""Gradients in tensors that user code keeps: tensors of its own, or tensors that it has read before.

A change of such a tensor counts as a change of ``parameter.grad``. So its values are copied into the group's
buffer before this is sent, and copied back when it is summed.
"""

import torch

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import REFERENCES_FROM_TORCH, FusedGroup, Slot, kept_elsewhere
from pace.runtime.engine.local_parts import local_part
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient


def holds(group: FusedGroup) -> bool:
    """Return whether user code keeps a tensor that it assigned to ``parameter.grad``, sent or not."""
    return group.owned and any(slot.apart or _is_held(slot) for slot in group.slots)


def _is_held(slot: Slot) -> bool:
    """Return whether user code keeps a tensor that it assigned to ``parameter.grad`` and that is not sent."""
    tensor = slot.assigned
    if tensor is None or tensor.layout is not torch.strided or local_gradient(slot.parameter) is not tensor:
        return False
    return kept_elsewhere(tensor, 2 + REFERENCES_FROM_TORCH)


def fold(group: FusedGroup, *, mean: bool) -> bool:
    """Add what this rank has computed and not sent yet to the gradients that user code keeps.

    Returns
    -------
    bool
        Whether there was any.

    Raises
    ------
    InvalidUse
        If gradients are summed and not averaged: only one rank may contribute an earlier result again.
    """
    folded = False
    for slot in group.slots:
        gradient = local_gradient(slot.parameter)
        if gradient is None or gradient is slot.assigned or not slot.base:
            continue
        if not mean:
            raise InvalidUse(
                f"your code keeps the gradient of {slot.name} while gradients accumulate, and op is 'sum':"
                " call zero_grad() after each step, or read parameter.grad again in every step"
            )
        with torch.no_grad():
            part = local_part(gradient)
            local_part(slot.shown).add_(part.to_dense() if part.is_sparse else part)
        set_local_gradient(slot.parameter, None)
        folded = True
    return folded


def take_back(group: FusedGroup) -> None:
    """Use the current values of gradients whose memory belongs to user code.

    It has assigned its own tensor, or moved the gradient: ``parameter.grad.data = ...``.
    """
    if not group.resolved or not (group.owned or group.seen):
        return
    with torch.no_grad():
        for slot in group.slots:
            if slot.base:
                slot.take_back()


def follow_assigned(slot: Slot) -> None:
    """Continue to use the tensor that user code assigned to ``parameter.grad``, if it keeps it."""
    tensor, slot.assigned = slot.assigned, None
    assert tensor is not None
    own = 2 + REFERENCES_FROM_TORCH  # and the caller's variable
    if tensor.layout is torch.strided and kept_elsewhere(tensor, own):
        slot.show_apart(tensor)


def end_owned(group: FusedGroup) -> None:
    """At the end of a step, copy results to tensors that user code keeps, and forget those it dropped."""
    for slot in group.slots:
        if not (slot.apart and slot.base and group.resolved):
            continue
        if kept_elsewhere(slot.shown, 1):
            with torch.no_grad():
                slot.give_out()  # step() may have clipped it
        else:
            slot.show()
    group.owned = any(slot.apart or slot.assigned is not None for slot in group.slots)
