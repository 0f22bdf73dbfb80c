"""The sums of gradients: this rank's contributions, and what becomes of the contributions of all ranks.

Torch's own gradients hold what this rank has computed until all gradients of a group have arrived. Then they
are copied into the group's buffer, and the group is sent. The *closing* group, which becomes ready last, is
held back until the round is *sealed*, by the first read of a gradient or by ``step()``. With this group every
rank sends its ``RoundCode``. So all ranks know, before any gradient is used, whether some contributions came
after their group had been sent (due to another, unexpected backward pass). All ranks send these in a second
*turn*.

In each turn every rank submits every group once, with zeros for gradients that it did not compute. So
collectives are in the same order on all ranks, whatever each of them computes.

User code may keep gradients in tensors: tensors of its own, or tensors that it has read before. A change of
such a tensor counts as a change of ``parameter.grad``. So its values are copied into the group's buffer
before this is sent, and copied back when it is summed.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from pace.errors import InvalidUse
from pace.runtime.control.sparse_gradients import buffer_runs
from pace.runtime.engine.buffers import (
    REFERENCES_FROM_TORCH,
    FusedGroup,
    Slot,
    kept_elsewhere,
    local_part,
)
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.sends import SegmentMemory
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient
from pace.runtime.optimizer.round_marks import (
    RoundCode,
    RoundMarks,
    disagreement,
    find_void,
    may_keep,
    substitute_for_idle,
)
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import Transport

# How long, in seconds, a rank waits for others before it asks them: it may be the only one to read gradients.
_PATIENCE_S = 0.2
_ONCE_ASKED_S = 0.01

# torch adds this to the norm before it divides by the norm.
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How sums become the gradients of the update.

    Attributes
    ----------
    divisor
        Gradients are divided by this before they are summed.
    scale
        The transport multiplies sums by this.
    mean
        Whether the result is the mean over all ranks. Otherwise it is the sum.
    rank
        The rank of this process.
    """

    divisor: float
    scale: float
    mean: bool
    rank: int

    @property
    def keeps_base(self) -> bool:
        """Whether this rank contributes the earlier result again: for a mean all ranks do, for a sum one."""
        return self.mean or self.rank == 0

    def join(self, slot: Slot, late: torch.Tensor | None) -> bool:
        """Add a late gradient to the earlier result, for another turn; return whether there is either."""
        if not (slot.present and self.keeps_base):
            slot.view.zero_()
        if late is not None:
            slot.view.add_(late.to_dense() if late.is_sparse else late)
        if self.divisor != 1:
            slot.view.div_(self.divisor)
        return slot.present or late is not None

    def hand_on(self, slot: Slot, *, mine: bool) -> bool:
        """Prepare a sum that gives all ranks one rank's gradient; return whether this rank contributes it."""
        if not (mine and slot.present):
            slot.view.zero_()
        elif self.scale != 1:
            slot.view.div_(self.scale)
        return mine and slot.present


class Reduction:
    """The turns in which the contributions of all ranks are summed.

    Parameters
    ----------
    tensors_of
        Returns the memory that the segments of a group send, in planned order.

    Attributes
    ----------
    closing
        The group that becomes ready last; None in a plan that sends nothing.
    open
        Whether this rank has contributed since the last round.
    computed
        Whether this rank has run a backward pass in this turn.
    sealed
        Whether this rank's contribution is final: all groups are submitted.
    folded
        Whether kept gradients include values that this rank has computed and not sent; see ``fold``.
    scattered
        Whether torch's own gradients may hold values for groups that are submitted already.
    unread
        Whether sums were made for other ranks or for gradients that user code keeps, and none was read here.
    step
        Number of steps taken.
    loaded
        Whether the optimizer's state was loaded since this rank's contribution was last final.
    turn
        How often all groups have been submitted.
    by_rows
        Whether this rank has only its rows of the sums, until ``resolve``.
    held
        Gradients of the last step that user code has not cleared, and of which this rank has only its rows.
    """

    engine: Engine  # from ``attach`` on
    _compare_state: Callable[[], None]
    by_rows = False
    held: AbstractSet[Slot] = frozenset()

    def __init__(
        self,
        groups: list[FusedGroup],
        transport: Transport,
        averaging: Averaging,
        *,
        tensors_of: Callable[[int], Sequence[SegmentMemory]],
    ) -> None:
        self._groups = groups
        self._tensors_of = tensors_of
        self._slots = [slot for group in groups for slot in group.slots]
        self._transport = transport
        self._averaging = averaging
        self.closing = next((group for group in groups if group.num_codes), None)
        self._marks = self._marks_of(groups)
        # This turn's contributions, with a copy if their sum may become invalid, and gradients that were
        # computed after their groups had been submitted.
        self._sent: dict[Slot, torch.Tensor | None] = {}
        self._late: dict[Slot, torch.Tensor] = {}
        self.folded = False
        self.open = False
        self.computed = False
        self.sealed = False
        self.scattered = False
        self._void: list[int] = []
        self._settled = self._kept_elsewhere = False
        self._kept_in = 0
        self._evaluated = True
        self._substitute: int | None = None
        self._ask: Callable[[int], None] | None = None
        self._patience_s = _PATIENCE_S
        self._read = False
        self.turn = 0
        self.unread = self.loaded = False
        self.step = 0

    def _marks_of(self, groups: list[FusedGroup]) -> RoundMarks:
        return RoundMarks(self._transport, len(groups), scale=self._averaging.scale)

    def attach(
        self,
        engine: Engine,
        ask: Callable[[int], None] | None = None,
        compare_state: Callable[[], None] = lambda: None,
    ) -> None:
        """Set the engine that sends the groups.

        Parameters
        ----------
        ask
            Asks other ranks to make their contributions to a turn final.
        compare_state
            Checks that all ranks have the same optimizer state; called on every rank after one loaded it.
        """
        self.engine = engine
        self._ask = ask
        self._compare_state = compare_state
        for group in self._groups:
            group.settle_references()

    # This rank's contribution.

    def arrive(self, slot: Slot) -> None:
        """Mark a gradient as complete; send its group if it was the last one."""
        group = slot.fused
        group.missing.discard(slot)
        if not group.missing and group is not self.closing:
            self._submit(group)

    def _submit(self, group: FusedGroup, code: RoundCode | None = None) -> None:
        """Copy this rank's gradients into the group's buffer and submit it to the engine."""
        with torch.no_grad():
            if group.seen:
                self._leave_to_user(group)
            group.take_back()
            here = []
            views, gradients = [], []
            partly: dict[Slot, torch.Tensor | None] = {}
            for slot in group.slots:
                gradient = local_gradient(slot.parameter)
                slot.here = gradient is not None or self._absent(slot)
                here.append(slot.here)
                adds = slot.base and self._averaging.keeps_base
                if gradient is None:
                    if not adds:
                        partly[slot] = None
                    continue
                if gradient is slot.assigned:
                    slot.follow_assigned()
                gradient = local_part(gradient)
                self._sent[slot] = None
                if slot.clears > 1 and not slot.base:
                    self._sent[slot] = gradient.clone() if slot.apart else gradient
                set_local_gradient(slot.parameter, None)
                if gradient.is_sparse and not adds:
                    gradient = gradient.coalesce()
                    if slot.view.is_contiguous():
                        partly[slot] = gradient
                    slot.view.zero_().add_(gradient)
                    continue
                if gradient.is_sparse:
                    gradient = gradient.to_dense()
                if adds:
                    slot.view.add_(gradient)
                else:
                    views.append(slot.view)
                    gradients.append(gradient)
            if views:
                torch._foreach_copy_(views, gradients)
            if self._averaging.divisor != 1:
                group.gradients.div_(self._averaging.divisor)
            runs = buffer_runs(group, partly) if partly and self._transport.takes_runs else None
            self._send(group, here, code, runs)

    def _absent(self, slot: Slot) -> bool:
        """Contribute to a gradient that was not computed; return whether the contribution counts as one."""
        if not (slot.base and self._averaging.keeps_base):
            slot.view.zero_()
        return slot.base or slot.zeroed

    def _send(
        self, group: FusedGroup, here: list[bool], code: RoundCode | None, runs: Runs | None = None
    ) -> None:
        self._marks.write(group, here, code)
        group.submitted = True
        group.resolved = False
        self.engine.submit(group.number, runs=runs)

    def live(self) -> bool:
        """Return whether this rank has contributed anything that was not cleared again."""
        if (
            self.open
            and not (self.sealed or self.folded)
            and not any(slot.passes or local_gradient(slot.parameter) is not None for slot in self._slots)
        ):
            self.open = False
        return self.open

    def _collect_late(self) -> bool:
        """Keep gradients that came after their group was submitted or dropped; return whether any did."""
        self.scattered = False
        for slot in self._slots:
            after = slot.fused.submitted or slot.dropped
            gradient = local_gradient(slot.parameter) if after else None
            if gradient is not None:
                if gradient is slot.assigned:
                    slot.follow_assigned()
                part = local_part(gradient)
                self._late[slot] = part.clone() if slot.apart else part
                set_local_gradient(slot.parameter, None)
        return bool(self._late)

    def drop(self, slot: Slot) -> None:
        """Withdraw this rank's contribution to a gradient, and the result if there is one."""
        set_local_gradient(slot.parameter, None)
        slot.forget()
        if self.sealed:
            if slot.fused.resolved:
                slot.present = False
            else:
                slot.dropped = True
            return
        slot.passes = 0
        # Other ranks may have sent what they drop here. So all ranks send what comes next in another turn.
        slot.dropped = slot.dropped or self.computed or slot.fused.submitted
        slot.fused.missing.add(slot)

    def _leave_to_user(self, group: FusedGroup) -> None:
        """Move gradients that user code refers to out of the buffer, which will be overwritten."""
        if group.release_kept():
            group.allocate()
            self._rebind(group)

    def _rebind(self, group: FusedGroup) -> None:
        self.engine.rebind(group.number, self._tensors_of(group.number))
        group.settle_references()

    def seal(self, *, read: bool) -> None:
        """Submit all remaining groups, with zeros for gradients that were not computed.

        Parameters
        ----------
        read
            Whether user code is about to read gradients.
        """
        self.turn += 1
        self._read = read
        idle = not self.live()
        self._void = [number for number, slot in enumerate(self._slots) if slot.dropped]
        late = (self._collect_late() if self.scattered else False) or bool(self._void)
        self._evaluated = False
        loaded, self.loaded = self.loaded, False
        code = RoundCode(late=late, read=read, idle=idle, kept=self._settled, step=self.step, loaded=loaded)
        for group in self._groups:
            if not group.submitted:
                self._submit(group, code if group is self.closing else None)
        with self._asking_late_ranks():
            self._marks.exchange(code)
        self.sealed = True
        self.folded = False
        if loaded and not self.by_rows:
            self._evaluate()  # before this rank exchanges anything else

    @property
    def sums(self) -> bool:
        """Whether contributions are summed, not averaged, so that no result may be added a second time."""
        return not self._averaging.mean

    @property
    def settles(self) -> bool:
        """Whether gradients must be complete when a backward pass ends, as user code on some rank keeps them.

        All ranks must do the same: if they run several backward passes in a step, each is a turn.
        """
        return self._kept_elsewhere or bool(self.kept)

    @property
    def kept(self) -> list[FusedGroup]:
        """Return the groups with gradients that user code keeps, and so can read and change at any time."""
        return [group for group in self._groups if group.is_kept or _holds(group)]

    def settle(self) -> list[FusedGroup]:
        """Record that gradients are complete when a backward pass ends; return the groups kept here."""
        kept = self.kept
        self._settled = bool(kept)
        return kept

    def fold(self, group: FusedGroup) -> None:
        """Add what this rank has computed and not sent yet to the gradients that user code keeps."""
        self.folded |= _fold(group, mean=self._averaging.mean)

    # The result of all ranks.

    def resolve(self, group: FusedGroup) -> None:
        """Wait until a group is reduced, and read which of its gradients exist."""
        if group.resolved:
            return
        self._evaluate()
        if not group.resolved:
            self.engine.wait(group.number)
            self._read_marks(group)

    def resolve_all(self) -> None:
        """Resolve every group."""
        for group in self._groups:
            self.resolve(group)

    def _read_marks(self, group: FusedGroup) -> None:
        group.resolved = True
        for slot, mark in zip(group.slots, self._marks.read(group), strict=True):
            slot.present = mark and not slot.dropped
            slot.dropped = False
            slot.base = slot.present and slot.cleared_to is None
            slot.zeroed = slot.present and slot.cleared_to == "zero"
            if slot.apart and slot.base:
                with torch.no_grad():
                    slot.give_out()

    def _evaluate(self) -> None:
        """Read the round codes of all ranks, and send gradients that came late."""
        if self._evaluated or self.closing is None:
            return
        codes = self._learn_codes(self.closing)
        fault = disagreement(codes)
        if fault:
            self.engine.abandon()
            raise InvalidUse(fault)
        self._evaluated = True
        self._substitute = substitute_for_idle(codes)
        self._note_keepers(codes)
        void: list[Slot] = []
        try:
            if any(code.loaded for code in codes):
                self._compare_state()
            if any(code.late for code in codes):
                void = find_void(
                    self._slots, self._void, codes, self._transport, sent=self._sent, late=self._late
                )
        except InvalidUse:
            self.engine.abandon()
            raise
        if any(code.late for code in codes):
            self.resolve_all()
            for slot in void:
                slot.present = slot.base = False
            self._send_again(None)
        self._sent.clear()

    def _note_keepers(self, codes: Sequence[RoundCode]) -> None:
        step = codes[0].step
        self._kept_elsewhere = may_keep(codes) or (self._kept_elsewhere and step == self._kept_in)
        self._kept_in = step

    def _learn_codes(self, closing: FusedGroup) -> list[RoundCode]:
        if not self._marks.beside:
            self._wait_for_others()
            self.engine.wait(closing.number)
        return self._marks.codes(closing)

    def _wait_for_others(self) -> None:
        """Wait for other ranks for a while, then ask them: maybe only this rank reads gradients.

        A rank that waits for an update does not ask, as the others will call ``step()`` themselves.
        """
        assert self.closing is not None
        if self._read and not self.engine.done(self.closing.number, self._patience_s):
            self._ask_others(self.turn)

    def _ask_others(self, turn: int) -> None:
        if self._ask is not None:
            self._ask(turn)
            self._patience_s = _ONCE_ASKED_S

    @contextlib.contextmanager
    def _asking_late_ranks(self) -> Iterator[None]:
        """Inside, ask other ranks if marks that are sent separately take long; see ``_wait_for_others``."""
        if not (self._marks.beside and self._read) or self._ask is None:
            yield
            return
        late = threading.Timer(self._patience_s, self._ask_others, [self.turn])
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def take_over(self) -> None:
        """Give all ranks one rank's gradients, if a rank had no backward pass and others have read gradients.

        Call it in or after ``step()``, when user code will no longer change the gradients.
        """
        self._evaluate()
        if self._substitute is not None:
            owner, self._substitute = self._substitute, None
            self._send_again(owner)

    def _send_again(self, owner: int | None) -> None:
        """Run a second turn, for late gradients, or to give all ranks the gradients of rank `owner`."""
        self.resolve_all()
        hidden = [(slot, slot.zeroed) for slot in self._slots if slot.present and not slot.base]
        mine = owner == self._transport.rank
        self.turn += 1
        with torch.no_grad():
            for group in self._groups:
                if group.seen:
                    self._leave_to_user(group)
            here = [
                [
                    self._averaging.join(slot, self._late.pop(slot, None))
                    if owner is None
                    else self._averaging.hand_on(slot, mine=mine)
                    for slot in group.slots
                ]
                for group in self._groups
            ]
            self._sum_again(here)
        for slot, zeroed in hidden:
            slot.base, slot.zeroed = False, zeroed

    def _sum_again(self, here: list[list[bool]]) -> None:
        """Sum buffers that are filled for a second turn; `here` tells which gradients this rank has."""
        submitted = [group.submitted for group in self._groups]
        code = RoundCode(late=False, read=False, idle=False, kept=self._settled, step=self.step)
        for group, marks in zip(self._groups, here, strict=True):
            self._send(group, marks, code if group is self.closing else None)
        self._marks.exchange(code)
        self._evaluated = True
        self.resolve_all()
        for group, before in zip(self._groups, submitted, strict=True):
            group.submitted = before  # the next round may have begun on this rank

    def adopt_replaced(self, arriving: Slot | None = None) -> None:
        """Use the gradients with which user code replaced reduced ones.

        Parameters
        ----------
        arriving
            A gradient to skip, because autograd has just added to it.
        """
        for group in self._groups:
            if group.seen and self._is_replaced(group, arriving) and group.is_viewed:
                self.resolve(group)
                group.renew()  # what views show of replaced gradients must not change
                self._rebind(group)
            group.take_back()
        if not self.scattered:
            return
        self.scattered = False
        for slot in self._slots:
            gradient = local_gradient(slot.parameter)
            if gradient is not None and slot is not arriving:
                self.resolve(slot.fused)
                slot.release_kept()
                if gradient is slot.assigned:
                    slot.follow_assigned()
                gradient = local_part(gradient)
                with torch.no_grad():
                    slot.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                set_local_gradient(slot.parameter, None)
                slot.present = slot.base = True
                slot.zeroed = False

    def _is_replaced(self, group: FusedGroup, arriving: Slot | None) -> bool:
        """Return whether user code has replaced a reduced gradient, or given it other memory."""
        if any(slot.base and slot.was_moved() for slot in group.slots):
            return True
        slots = [slot for slot in group.slots if self.scattered and slot is not arriving]
        return any(local_gradient(slot.parameter) is not None for slot in slots)

    def cleared(self) -> bool:
        """Return whether all gradients of a sealed round were cleared, so that a new round begins."""
        self.resolve_all()
        return not any(slot.base or local_gradient(slot.parameter) is not None for slot in self._slots)

    def reopen(self, arriving: Slot | None = None) -> None:
        """Begin another turn of the same step: more gradients are computed after user code has read some.

        The earlier result is kept, and new contributions are added to it.

        Raises
        ------
        InvalidUse
            If a rank without a backward pass may have called ``step()`` already.
        """
        self.adopt_replaced(arriving)
        self.resolve_all()
        if arriving is not None and self._substitute is not None:
            self.engine.abandon()
            raise InvalidUse(
                f"rank {self._transport.rank} ran another backward pass after its gradients were complete, in"
                " a step in which another rank ran none: put all backward passes of a step except the last in"
                " no_sync(), or run one on every rank"
            )
        self._begin()
        self.sealed = False

    def end(self) -> None:
        """End the round; later gradients belong to the next step."""
        self._begin()
        for slot in self._slots:
            slot.clears = 0
        for group in self._groups:
            group.give_out_kept()
        self.sealed = self.open = self.folded = self._read = self._settled = False
        self.step += 1

    def _begin(self) -> None:
        self.computed = self.unread = False
        for group in self._groups:
            group.missing.update(group.slots)
            group.submitted = False
            for slot in group.slots:
                slot.passes = 0

    # What differs if this rank has only its rows.

    def restore_held(self) -> None:
        """Gather the uncleared gradients of the last step on all ranks; every rank calls it."""

    def for_scaler(self, slot: Slot) -> tuple[bool, torch.Tensor | None]:  # noqa: ARG002
        """Return whether a GradScaler may check only a part of a gradient, and this part."""
        return False, None


def _holds(group: FusedGroup) -> bool:
    """Return whether user code keeps a tensor that it assigned to ``parameter.grad``, sent or not."""
    return group.owned and any(slot.apart or _is_held(slot) for slot in group.slots)


def _is_held(slot: Slot) -> bool:
    """Return whether user code keeps a tensor that it assigned to ``parameter.grad`` and that is not sent."""
    tensor = slot.assigned
    if tensor is None or tensor.layout is not torch.strided or local_gradient(slot.parameter) is not tensor:
        return False
    return kept_elsewhere(tensor, 2 + REFERENCES_FROM_TORCH)


def _fold(group: FusedGroup, *, mean: bool) -> bool:
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


def coefficient_for(max_norm: float, norm: torch.Tensor) -> torch.Tensor:
    """Return the factor by which torch multiplies gradients with this norm; at most 1."""
    factor: torch.Tensor = max_norm / (norm + _EPSILON)
    return factor.clamp(max=1.0)
