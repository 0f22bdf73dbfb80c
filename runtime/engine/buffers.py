"""Fused buffers: where every gradient lies, and what is known of it in the round under way.

A group's buffer holds its gradients and, behind them, one *mark* for each: how many ranks have computed it.
Marks are summed with the gradients, so every rank learns which gradients exist at no cost. The group that
becomes ready last also carries one number from each rank (see ``round_codes``).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from pace.runtime.engine.local_parts import as_part_of, local_part, num_elements
from pace.runtime.engine.plan import PlannedGroup, SendPlan


class Slot:
    """One gradient's place in its group's buffer, and its progress through a round.

    Attributes
    ----------
    view
        Its part of the buffer, with the parameter's own strides.
    shown
        What user code sees in ``parameter.grad``: the same memory, of a sharded parameter as a DTensor.
    apart
        Whether `shown` is memory of the training loop's own, which the loop keeps, such as a part of a flat
        buffer. What is reduced is copied there, and what the loop makes of it is copied back.
    assigned
        What user code has put into ``parameter.grad`` and autograd may have added to since.
    passes
        How often autograd has added to the gradient since it was last reduced or cleared.
    expected
        How often it does so before the gradient is complete, as far as the rounds before tell.
    short, peak
        In how many rounds in a row there were fewer passes than expected, and the most in them.
    complete
        Whether it has been added to as often as expected.
    base
        Whether the buffer holds a reduced gradient that user code has not cleared: what it finds in
        ``parameter.grad``, and what later contributions add to.
    present
        Whether any rank had a gradient in the round reduced last, and no user code took it away: whether the
        update has one.
    here
        Whether this rank contributed when the group was handed over last.
    dropped
        Whether user code cleared the gradient when this rank had, or may have, handed it over: what is summed
        of it is void.
    gave
        Whether this rank contributed a gradient of its own when the group was handed over last.
    sent
        What it contributed then, where it must be kept: other ranks may say that the sum is void.
    clears
        How often user code has cleared the gradient since the last step.
    keeps
        Whether what is contributed is to be kept.
    cleared, zeroed_later
        What ``zero_grad`` asked for between ``step()`` and the update.
    zeroed
        Whether the gradient is present and zero: ``zero_grad(set_to_none=False)``.
    late
        What was computed after the group was handed over.
    claimed
        Whether a gate or a guard saw the parameter being used in the first round that was watched.
    """

    __slots__ = (
        "apart",
        "assigned",
        "base",
        "claimed",
        "cleared",
        "clears",
        "complete",
        "dropped",
        "expected",
        "fused",
        "gave",
        "here",
        "keeps",
        "late",
        "name",
        "parameter",
        "passes",
        "peak",
        "present",
        "sent",
        "short",
        "shown",
        "view",
        "zeroed",
        "zeroed_later",
    )

    view: torch.Tensor
    shown: torch.Tensor

    def __init__(self, name: str, parameter: torch.nn.Parameter, fused: "FusedGroup") -> None:
        self.name = name
        self.parameter = parameter
        self.fused = fused
        self.passes = 0
        self.expected = 1
        self.short = 0
        self.peak = 0
        self.complete = False
        self.base = False
        self.present = False
        self.here = False
        self.gave = False
        self.sent: torch.Tensor | None = None
        self.clears = 0
        self.keeps = False
        self.dropped = False
        self.cleared = False
        self.zeroed_later = False
        self.zeroed = False
        self.late: torch.Tensor | None = None
        self.claimed = False
        self.apart = False
        self.assigned: torch.Tensor | None = None

    def forget(self) -> None:
        """Have no reduced gradient any more: what user code keeps of it is its own."""
        self.base = self.zeroed = False
        self.assigned = None
        if self.apart:
            self.show()

    @property
    def is_kept(self) -> bool:
        """Whether user code keeps the very tensor that it finds in ``parameter.grad``."""
        return sys.getrefcount(self.shown) > _OWN

    def release_kept(self) -> None:
        """Give what user code keeps of it memory of its own, where it has cleared or replaced it."""
        if self.base:
            return
        if self.is_kept:
            kept = local_part(self.shown)
            kept.data = kept.clone()
            self.show()

    def show(self) -> None:
        """Have user code see the buffer in a tensor that nobody has yet."""
        self.shown = as_part_of(self.view.data, self.parameter)
        self.apart = False

    def show_apart(self, tensor: torch.Tensor) -> None:
        """Have user code go on with a tensor that it has put into ``parameter.grad`` and keeps."""
        self.shown = tensor
        self.apart = self.fused.owned = True

    def assign(self, tensor: torch.Tensor) -> None:
        """Take note of what user code puts into ``parameter.grad``."""
        self.assigned = tensor
        self.fused.owned = True

    def take_back(self) -> None:
        """Copy what user code has made of a gradient in its own memory to the buffer."""
        shown = local_part(self.shown)
        if shown.data_ptr() != self.view.data_ptr():
            self.view.copy_(shown)
            self.apart = self.fused.owned = True

    def give_out(self) -> None:
        """Copy a gradient from the buffer to the memory in which user code sees it."""
        local_part(self.shown).copy_(self.view)


class Awaited(Protocol):
    """What a parameter's use may have to wait for.

    Attributes
    ----------
    pending
        Whether it does.
    """

    pending: bool


class FusedGroup:
    """A group's buffer, the gradients in it, and how far this round has come.

    Attributes
    ----------
    buffer
        Gradients, marks, and in the closing group one number a rank.
    gradients
        The part of it that holds gradients.
    marks
        One element a gradient: how many ranks have it.
    codes
        One element a rank in the closing group; empty elsewhere.
    missing
        Gradients that have not been added to as often as expected.
    submitted
        Whether the engine has it, or had it, in this round.
    pending
        Whether ``step()`` was called and its update is still to be applied.
    resolved
        Whether its sums and marks have been waited for since it was submitted last.
    seen
        Whether user code has been given one of its gradients since the buffer was last written to.
    owned
        Whether user code may have put a gradient of its own in the place of one.
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
        self.missing = len(self.slots)
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
            # No views as far as autograd knows: user code may detach gradients in place.
            part = local_part(slot.parameter)
            slot.view = like(self.buffer[offset : offset + part.numel()], part).data
            slot.show()
            offset += size
        self.gradients = self.buffer[:total]
        self.marks = self.buffer[total : total + len(sizes)]
        self.codes = self.buffer[total + len(sizes) :]

    def settle_references(self) -> None:
        """Take the tensors that now share the buffer for the runtime's own; see ``release_kept``."""
        self._baseline = self._num_references()

    def release_kept(self) -> bool:
        """Leave to user code what it keeps but has cleared; say whether it keeps parts of it.

        They must keep their values, as in plain training, where a gradient that is cleared is followed by a
        new tensor. The tensors themselves are given memory of their own. Views that user code has made of
        them still share the buffer, which then must not be written to any more.
        """
        for slot in self.slots:
            slot.release_kept()
        self.seen = any(slot.base for slot in self.slots)
        return not self.seen and self._num_references() > self._baseline

    @property
    def is_kept(self) -> bool:
        """Whether user code keeps a gradient that is ``parameter.grad`` now, or a view of one."""
        if not self.seen or not any(slot.base for slot in self.slots):
            return False
        if any(slot.base and (slot.apart or slot.is_kept) for slot in self.slots):
            return True
        return self._num_references() > self._baseline

    def _num_references(self) -> int:
        return int(num_uses(self.buffer.untyped_storage()._cdata))


# What sys.getrefcount says of an object that one attribute refers to.
_OWN = 2

# How many tensors, and handles of Python's, share a storage, by its address; untyped in torch.
num_uses: Any = torch._C._storage_Use_Count


def shared_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether another tensor, or a NumPy array, shares a tensor's memory."""
    storage = local_part(tensor).untyped_storage()
    uses: int = num_uses(storage._cdata)
    return uses > 2  # the tensor, and `storage`


def kept_elsewhere(tensor: torch.Tensor, num_own: int) -> bool:
    """Whether others than the caller, who has so many references, refer to a tensor or share its memory."""
    return sys.getrefcount(tensor) > num_own + _OWN or shared_elsewhere(tensor)


def _references_from_torch() -> int:
    parameter, tensor = torch.zeros(1, requires_grad=True), torch.zeros(1)
    before = sys.getrefcount(tensor)
    parameter.grad = tensor
    return sys.getrefcount(tensor) - before


# How many references torch has to a tensor that is some parameter's gradient: versions differ.
REFERENCES_FROM_TORCH = _references_from_torch()


def like(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """View a flat part of a buffer with a parameter's shape and, where they leave no gaps, its strides.

    Fused optimizers go through parameter and gradient in the order in which they lie in memory.
    """
    if parameter.is_contiguous() or not dense(parameter):
        return flat.view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset())


def dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill a contiguous stretch of memory, in whatever order."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def build_groups(
    plan: SendPlan, parameters: Mapping[str, torch.nn.Parameter], *, num_ranks: int
) -> list[FusedGroup]:
    """Allocate a buffer for each group; see ``closing_group`` for where the ranks' numbers travel."""
    closing = closing_group(plan)
    return [
        FusedGroup(number, planned, parameters, num_codes=num_ranks if number == closing else 0)
        for number, planned in enumerate(plan.groups)
    ]


def closing_group(plan: SendPlan) -> int:
    """Return the group that becomes ready last: it is handed over when the round is sealed.

    -1 for a plan that sends nothing.
    """
    sent = {s.group for s in plan.segments if plan.groups[s.group].exchange != "all-gather"}
    return max(sent, key=lambda number: (plan.groups[number].ready_s, number), default=-1)


def segment_tensors(
    plan: SendPlan, groups: Sequence[FusedGroup], only: int | None = None
) -> list[torch.Tensor]:
    """For every segment, what it sends: its part of the buffer, at the buffer's end with what follows there.

    Parameters
    ----------
    only
        A group whose segments alone are wanted.
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
