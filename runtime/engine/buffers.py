"""Fused buffers: where every gradient is stored, and its state in the current round.

A group's buffer holds its gradients and, after them, one *mark* for each: the number of ranks that have
computed it. Marks are summed with the gradients, so every rank learns at no cost which gradients exist. The
group that becomes ready last also carries one number from each rank (see ``RoundCode``).

Of a tensor that is spread over ranks (a DTensor), such as a parameter under ``fully_shard``, buffers, sums
and marks use this rank's *part*. Users, optimizers and checkpoints use DTensors. A plain tensor is its own
part.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

from pace.runtime.engine.plan import PlannedGroup, SendPlan


class Slot:
    """One gradient's place in its group's buffer, and its progress through a round.

    Attributes
    ----------
    view
        Its part of the buffer, with the parameter's strides.
    shown
        The tensor that user code reads from ``parameter.grad``. It shares the memory of `view`; for a sharded
        parameter it is a DTensor.
    apart
        Whether `shown` has other memory, which the training loop keeps, for example a part of a flat buffer.
        Results are copied there, and changes by the loop are copied back.
    assigned
        The tensor that user code assigned to ``parameter.grad``. Autograd may have added to it since.
    passes
        How often autograd has added to the gradient since it was last reduced or cleared.
    base
        Whether the buffer holds a reduced gradient that user code has not cleared. Then ``parameter.grad`` is
        this gradient, and later contributions are added to it.
    present
        Whether the update has a gradient: some rank had one in the last reduced round, and no user code
        cleared it.
    here
        Whether this rank contributed when the group was last submitted.
    dropped
        Whether user code cleared the gradient after this rank had, or may have, submitted it. The sum is then
        invalid.
    clears
        How often user code has cleared the gradient since the last step; at least 2 if it was replaced.
    cleared_to
        To what user code has cleared the gradient between ``step()`` and the update: "none", or "zero" by
        ``zero_grad(set_to_none=False)``; it is then zero if the update has it. None if it was not cleared.
    zeroed
        Whether the gradient exists and is zero, after ``zero_grad(set_to_none=False)``.
    """

    __slots__ = (
        "apart",
        "assigned",
        "base",
        "cleared_to",
        "clears",
        "dropped",
        "fused",
        "here",
        "name",
        "parameter",
        "passes",
        "present",
        "shown",
        "view",
        "zeroed",
    )

    view: torch.Tensor
    shown: torch.Tensor

    def __init__(self, name: str, parameter: torch.nn.Parameter, fused: "FusedGroup") -> None:
        self.name = name
        self.parameter = parameter
        self.fused = fused
        self.passes = 0
        self.base = False
        self.present = False
        self.here = False
        self.clears = 0
        self.dropped = False
        self.cleared_to: Literal["none", "zero"] | None = None
        self.zeroed = False
        self.apart = False
        self.assigned: torch.Tensor | None = None

    def forget(self) -> None:
        """Forget the reduced gradient; tensors of it that user code keeps become its own."""
        self.base = self.zeroed = False
        self.assigned = None
        if self.apart or (self.fused.seen and self.was_moved()):
            self.show()

    def was_moved(self) -> bool:
        """Return whether user code has given the gradient other memory: ``parameter.grad.data = ...``."""
        return local_part(self.shown).data_ptr() != self.view.data_ptr()

    @property
    def is_kept(self) -> bool:
        """Return whether user code keeps the tensor that it reads from ``parameter.grad``."""
        return sys.getrefcount(self.shown) > _OWN

    def release_kept(self) -> None:
        """Move a tensor that user code keeps, but has cleared or replaced, to memory of its own."""
        if self.base:
            return
        if self.is_kept:
            kept = local_part(self.shown)
            kept.data = kept.clone()
            self.show()

    def show(self) -> None:
        """Show the buffer to user code in a new tensor."""
        self.shown = as_part_of(self.view.data, self.parameter)
        self.apart = False

    def show_apart(self, tensor: torch.Tensor) -> None:
        """Continue to show a tensor that user code has assigned to ``parameter.grad`` and keeps."""
        self.shown = tensor
        self.apart = self.fused.owned = True

    def assign(self, tensor: torch.Tensor) -> None:
        """Record a tensor that user code assigns to ``parameter.grad``."""
        self.assigned = tensor
        self.fused.owned = True

    def follow_assigned(self) -> None:
        """Continue to use the tensor that user code assigned to ``parameter.grad``, if it keeps it."""
        tensor, self.assigned = self.assigned, None
        assert tensor is not None
        own = 2 + REFERENCES_FROM_TORCH  # and the caller's variable
        if tensor.layout is torch.strided and kept_elsewhere(tensor, own):
            self.show_apart(tensor)

    def take_back(self) -> None:
        """Copy a gradient from user code's own memory to the buffer."""
        if self.was_moved():
            self.view.copy_(local_part(self.shown))
            self.apart = self.fused.owned = True

    def give_out(self) -> None:
        """Copy a gradient from the buffer to user code's own memory."""
        local_part(self.shown).copy_(self.view)


class Awaited(Protocol):
    """A group or gather that the use of a parameter may have to wait for.

    Attributes
    ----------
    slots
        The slots of the parameters.
    pending
        Whether the use must wait.
    """

    slots: list[Slot]
    pending: bool


class FusedGroup:
    """A group's buffer, its gradients, and its state in the current round.

    Attributes
    ----------
    buffer
        Gradients, marks and, in the closing group, one number for each rank; of one dimension.
    gradients
        The part of the buffer that holds gradients.
    marks
        One element for each gradient: the number of ranks that have it.
    codes
        One element for each rank in the closing group; empty in other groups.
    missing
        The gradients to which autograd has not added as often as expected.
    submitted
        Whether it was submitted to the engine in this round.
    pending
        Whether ``step()`` was called and its update is still to be applied.
    resolved
        Whether its sums and marks were waited for since its last submission.
    seen
        Whether user code has read one of its gradients since the buffer was last written.
    owned
        Whether user code may have replaced one of its gradients by a tensor of its own.
    """

    __slots__ = (
        "_baseline",
        "buffer",
        "codes",
        "gradients",
        "marks",
        "missing",
        "num_codes",
        "number",
        "owned",
        "pending",
        "planned",
        "resolved",
        "seen",
        "slots",
        "submitted",
    )

    buffer: torch.Tensor
    gradients: torch.Tensor
    marks: torch.Tensor
    codes: torch.Tensor

    def __init__(
        self,
        number: int,
        planned: PlannedGroup,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        num_codes: int,
    ) -> None:
        self.number = number
        self.planned = planned
        self.num_codes = num_codes
        self.slots = [Slot(name, parameters[name], self) for name in planned.gradients]
        self.missing = set(self.slots)
        self.submitted = False
        self.pending = False
        self.resolved = True
        self.seen = False
        self.owned = False
        self._baseline = 0
        self.allocate()

    def allocate(self) -> None:
        """Give the group a new, zeroed buffer."""
        first = self.slots[0].parameter
        sizes = [num_elements(slot.parameter) for slot in self.slots]
        total = sum(sizes)
        self.buffer = torch.zeros(total + len(sizes) + self.num_codes, dtype=first.dtype, device=first.device)
        offset = 0
        for slot, size in zip(self.slots, sizes, strict=True):
            # Autograd must not take them for views, as user code may detach gradients in place.
            part = local_part(slot.parameter)
            slot.view = like(self.buffer[offset : offset + part.numel()], part).data
            slot.show()
            offset += size
        self.gradients = self.buffer[:total]
        self.marks = self.buffer[total : total + len(sizes)]
        self.codes = self.buffer[total + len(sizes) :]

    def settle_references(self) -> None:
        """Count the tensors that share the buffer now as the runtime's own; see ``release_kept``."""
        self._baseline = self._num_references()

    def release_kept(self) -> bool:
        """Move tensors that user code keeps, but has cleared, to memory of their own.

        They must keep their values, as in plain training, where a new tensor follows a cleared gradient.
        Views that user code has made of them still share the buffer, which then must not be written to any
        more.

        Returns
        -------
        bool
            Whether there are such views.
        """
        for slot in self.slots:
            slot.release_kept()
        self.seen = any(slot.base for slot in self.slots)
        return not self.seen and self._num_references() > self._baseline

    @property
    def is_kept(self) -> bool:
        """Return whether user code keeps a gradient that is ``parameter.grad`` now, or a view of one."""
        if not self.seen or not any(slot.base for slot in self.slots):
            return False
        if any(slot.base and (slot.apart or slot.is_kept) for slot in self.slots):
            return True
        return self._num_references() > self._baseline

    def take_back(self) -> None:
        """Use the current values of gradients whose memory belongs to user code.

        It has assigned its own tensor, or moved the gradient: ``parameter.grad.data = ...``.
        """
        if self.resolved and (self.owned or self.seen):
            with torch.no_grad():
                for slot in self.slots:
                    if slot.base:
                        slot.take_back()

    def give_out_kept(self) -> None:
        """At the end of a step, copy results to tensors that user code keeps, and forget those it dropped."""
        if not self.owned:
            return
        for slot in self.slots:
            if not (slot.apart and slot.base and self.resolved):
                continue
            if kept_elsewhere(slot.shown, 1):
                with torch.no_grad():
                    slot.give_out()  # step() may have clipped it
            else:
                slot.show()
        self.owned = any(slot.apart or slot.assigned is not None for slot in self.slots)

    @property
    def is_viewed(self) -> bool:
        """Return whether user code keeps views of gradients that it has read."""
        return self.seen and self._num_references() > self._baseline

    def renew(self) -> None:
        """Give the group a new buffer with the same gradients; the old one is left to user code's views."""
        before = [(slot.view, slot.shown, slot.apart, slot.was_moved()) for slot in self.slots]
        self.allocate()
        with torch.no_grad():
            for slot, (view, shown, apart, moved) in zip(self.slots, before, strict=True):
                slot.view.copy_(view)
                if slot.base:
                    slot.shown, slot.apart = shown, apart
                    if not moved:
                        local_part(shown).data = slot.view.data

    def _num_references(self) -> int:
        moved = sum(slot.was_moved() for slot in self.slots)
        return moved + int(num_uses(self.buffer.untyped_storage()._cdata))


# What sys.getrefcount returns for an object that one attribute refers to.
_OWN = 2

# The number of tensors, and of Python handles, that share a storage, by its address; untyped in torch.
num_uses: Any = torch._C._storage_Use_Count


def shared_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether another tensor, or a NumPy array, shares a tensor's memory."""
    storage = local_part(tensor).untyped_storage()
    uses: int = num_uses(storage._cdata)
    return uses > 2  # the tensor, and `storage`


def kept_elsewhere(tensor: torch.Tensor, num_own: int) -> bool:
    """Return whether others refer to a tensor or share its memory; the caller has `num_own` references."""
    return sys.getrefcount(tensor) > num_own + _OWN or shared_elsewhere(tensor)


def _references_from_torch() -> int:
    parameter, tensor = torch.zeros(1, requires_grad=True), torch.zeros(1)
    before = sys.getrefcount(tensor)
    parameter.grad = tensor
    return sys.getrefcount(tensor) - before


# How many references torch itself has to a tensor that is a parameter's gradient; versions of torch differ.
REFERENCES_FROM_TORCH = _references_from_torch()


def like(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """View a flat part of a buffer with a parameter's shape and, if they leave no gaps, its strides.

    Fused optimizers read parameter and gradient in memory order, so both need the same strides.
    """
    if parameter.is_contiguous() or not dense(parameter):
        return flat.view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset())


def dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill a contiguous range of memory, in any order."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def build_groups(
    plan: SendPlan, parameters: Mapping[str, torch.nn.Parameter], *, num_ranks: int
) -> list[FusedGroup]:
    """Allocate a buffer for each group. The ``closing_group`` has room for the ranks' numbers."""
    closing = closing_group(plan)
    return [
        FusedGroup(number, planned, parameters, num_codes=num_ranks if number == closing else 0)
        for number, planned in enumerate(plan.groups)
    ]


def closing_group(plan: SendPlan) -> int:
    """Return the group that becomes ready last, or -1 if the plan sends nothing.

    It is submitted when the round is sealed.
    """
    sent = {s.group for s in plan.segments if plan.groups[s.group].exchange != "all-gather"}
    return max(sent, key=lambda number: (plan.groups[number].ready_s, number), default=-1)


def segment_tensors(
    plan: SendPlan, groups: Sequence[FusedGroup], only: int | None = None
) -> list[torch.Tensor]:
    """Return the part of its group's buffer that each segment sends. The last one includes marks and codes.

    Parameters
    ----------
    only
        Return only the segments of this group (default: of all groups).
    """
    ends: dict[int, int] = {}
    for planned in plan.segments:
        ends[planned.group] = max(ends.get(planned.group, 0), planned.offset_bytes + planned.size_bytes)
    tensors = []
    for planned in plan.segments:
        if only is not None and planned.group != only:
            continue
        buffer = groups[planned.group].buffer
        element = buffer.element_size()
        start, end = planned.offset_bytes, planned.offset_bytes + planned.size_bytes
        stop = len(buffer) if end == ends[planned.group] else end // element
        tensors.append(buffer[start // element : stop])
    return tensors


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank's part."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def as_part_of(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor like the parameter (plain, or a DTensor sharded like it) with `part` on this rank."""
    spec: Any = getattr(parameter, "_spec", None)
    if spec is None:
        return part
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]  # in torch
    return made


def num_elements(parameter: torch.Tensor) -> int:
    """Return the number of a parameter's elements for which every rank has room.

    The last ranks may have fewer elements. This number is the same on all ranks, and so are sizes and
    schedules.
    """
    placements: Sequence[Any] | None = getattr(parameter, "placements", None)
    if placements is None:
        return parameter.numel()
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]  # only DTensors have placements
    shape = list(parameter.shape)
    for number, placement in enumerate(placements):
        if placement.is_shard():
            shape[placement.dim] = -(-shape[placement.dim] // mesh.size(number))
    return torch.Size(shape).numel()


def num_bytes(parameter: torch.Tensor) -> int:
    """Return the bytes of a parameter's gradient on every rank; see ``num_elements``."""
    return num_elements(parameter) * parameter.element_size()
