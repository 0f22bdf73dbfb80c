"""From contributions to reduced gradients: what one rank adds to a round, and what all ranks make of it.

Torch's own gradients hold what this rank has computed until all of a group's have arrived: then they are
taken into its buffer, and the group is sent. The *closing* group, which becomes ready last, is kept until the
round is *sealed*: by the first read of a gradient, or by ``step()``. With it every rank says how its round
went. So all ranks know, before any gradient is used, whether contributions came after their group had been
sent (another backward pass, which no earlier round announced). These are sent in a second turn, on all ranks.

Every rank submits every group once a turn, with zeros for gradients that it did not compute; that keeps
collectives in the same order on all ranks whatever each of them computes.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import torch

from pace.errors import InvalidUse
from pace.runtime.control.sparse_gradients import buffer_runs
from pace.runtime.engine.buffers import (
    FusedGroup,
    Slot,
    segment_tensors,
)
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.local_parts import local_part
from pace.runtime.engine.plan import SendPlan
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient
from pace.runtime.optimizer.gradients.averaging import Averaging
from pace.runtime.optimizer.gradients.kept_gradients import end_owned, fold, follow_assigned, holds, take_back
from pace.runtime.optimizer.gradients.round_codes import (
    RoundCode,
    disagreement,
    may_keep,
    substitute_for_idle,
)
from pace.runtime.optimizer.gradients.round_marks import RoundMarks, find_void
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import Transport

# How long a rank waits for others before it asks them: one that reads gradients may be the only one.
_PATIENCE_S = 0.2
_ONCE_ASKED_S = 0.01


class Reduction:
    """The groups' buffers and marks, and the turns in which they are summed.

    Attributes
    ----------
    closing
        The group that becomes ready last; None in a plan that sends nothing.
    open
        Whether this rank has contributed since the last round.
    computed
        Whether it has had a backward pass in this turn.
    sealed
        Whether its contribution is final: everything is handed over.
    folded
        Whether kept gradients hold something that this rank has computed and not sent; see ``fold``.
    scattered
        Whether torch's own gradients may hold something of groups that are handed over.
    unread
        Whether sums were made for others or for what user code keeps, and it has read none of them here.
    step
        How many steps have been taken.
    turn
        How often all groups have been submitted.
    by_rows
        Whether this rank has only its rows of the sums, until ``resolve``.
    held
        Gradients of the last step that user code has not cleared, and of which this rank has only its rows.
    """

    by_rows = False
    held: AbstractSet[Slot] = frozenset()

    def __init__(
        self, plan: SendPlan, groups: list[FusedGroup], transport: Transport, averaging: Averaging
    ) -> None:
        self._plan = plan
        self._groups = groups
        self._slots = [slot for group in groups for slot in group.slots]
        self._transport = transport
        self._averaging = averaging
        self.closing = next((group for group in groups if group.num_codes), None)
        self._engine: Engine | None = None
        self._marks = self._marks_of(groups)
        self._void: list[int] = []
        self._keeping = False
        self._settled = self._kept_elsewhere = False
        self._kept_in = 0
        self._evaluated = True
        self._substitute: int | None = None
        self._ask: Callable[[int], None] | None = None
        self._patience_s = _PATIENCE_S
        self._read = False
        self.folded = False
        self.turn = 0
        self.open = False
        self.computed = False
        self.sealed = False
        self.scattered = False
        self.unread = False
        self.step = 0

    def _marks_of(self, groups: list[FusedGroup]) -> RoundMarks:
        return RoundMarks(self._transport, len(groups), scale=self._averaging.scale)

    def attach(self, engine: Engine, ask: Callable[[int], None] | None = None) -> None:
        """Send through this engine.

        Parameters
        ----------
        ask
            Asks other ranks to make their contributions to a turn final.
        """
        self._engine = engine
        self._ask = ask
        for group in self._groups:
            group.settle_references()

    @property
    def engine(self) -> Engine:
        """What sends the groups."""
        assert self._engine is not None
        return self._engine

    # This rank's contribution.

    def arrive(self, slot: Slot) -> None:
        """Note that nothing more is expected for a gradient; sends its group when it was the last."""
        slot.complete = True
        group = slot.fused
        group.missing -= 1
        if not group.missing and group is not self.closing:
            self._submit(group)

    def _submit(self, group: FusedGroup, code: RoundCode | None = None) -> None:
        """Take this rank's gradients into the buffer and hand it over."""
        with torch.no_grad():
            if group.seen:
                self._leave_to_user(group)
            take_back(group)
            here = []
            views, gradients = [], []
            partly: dict[Slot, torch.Tensor | None] = {}
            for slot in group.slots:
                gradient = local_gradient(slot.parameter)
                slot.gave = gradient is not None
                slot.here = slot.gave or self._absent(slot)
                here.append(slot.here)
                adds = slot.base and self._averaging.keeps_base
                if gradient is None:
                    if not adds:
                        partly[slot] = None
                    continue
                if gradient is slot.assigned:
                    follow_assigned(slot)
                gradient = local_part(gradient)
                if slot.keeps and not slot.base:
                    slot.sent = gradient.clone() if slot.apart else gradient
                    self._keeping = True
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
        """Contribute what is there without a new gradient; say whether that counts as one."""
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
        """Whether this rank has contributed anything that was not cleared again."""
        if (
            self.open
            and not (self.sealed or self.folded)
            and not any(slot.passes or local_gradient(slot.parameter) is not None for slot in self._slots)
        ):
            self.open = False
        return self.open

    def seal(self, *, read: bool) -> None:
        """Hand over all that is left, with zeros for what was not computed.

        Parameters
        ----------
        read
            Whether user code is about to see gradients.
        """
        self.turn += 1
        self._read = read
        idle = not self.live()
        self._void = [number for number, slot in enumerate(self._slots) if slot.dropped]
        late = (self._collect_late() if self.scattered else False) or bool(self._void)
        self._evaluated = False
        code = RoundCode(late=late, read=read, idle=idle, kept=self._settled, step=self.step)
        for group in self._groups:
            if not group.submitted:
                self._submit(group, code if group is self.closing else None)
        self._marks.exchange(code)
        self.sealed = True
        self.folded = False

    def _collect_late(self) -> bool:
        """Keep what came after its group was handed over, or was dropped; say whether there is any."""
        self.scattered = False
        late = False
        for slot in self._slots:
            after = slot.fused.submitted or slot.dropped
            gradient = local_gradient(slot.parameter) if after else None
            if gradient is not None:
                if gradient is slot.assigned:
                    follow_assigned(slot)
                part = local_part(gradient)
                slot.late = part.clone() if slot.apart else part
                set_local_gradient(slot.parameter, None)
                late = True
        return late

    def drop(self, slot: Slot) -> None:
        """Take back this rank's contribution to a gradient, and what is reduced of it."""
        set_local_gradient(slot.parameter, None)
        slot.forget()
        if self.sealed:
            if slot.fused.resolved:
                slot.present = False
            else:
                slot.dropped = True
            return
        slot.passes = 0
        # Other ranks may have sent what they drop here. So what comes next is sent after it, on all ranks.
        slot.dropped = slot.dropped or self.computed or slot.fused.submitted
        if slot.complete and not slot.fused.submitted:
            slot.complete = False
            slot.fused.missing += 1

    @property
    def sums(self) -> bool:
        """Whether contributions are added, and not averaged: a sum must not be contributed again."""
        return not self._averaging.mean

    @property
    def settles(self) -> bool:
        """Whether gradients are to be complete as a backward pass ends, for user code on any rank.

        All ranks must do so alike: where they run several backward passes in a step, each is a turn.
        """
        return self._kept_elsewhere or bool(self.kept)

    @property
    def kept(self) -> list[FusedGroup]:
        """Groups of which user code keeps gradients that it can see and change at any time."""
        return [group for group in self._groups if group.is_kept or holds(group)]

    def settle(self) -> list[FusedGroup]:
        """Note that gradients are complete as a backward pass ends; return the groups of those kept here."""
        kept = self.kept
        self._settled = bool(kept)
        return kept

    def fold(self, group: FusedGroup) -> None:
        """Have user code see in kept gradients what is not sent yet; see ``kept_gradients.fold``."""
        self.folded |= fold(group, mean=self._averaging.mean)

    # What all ranks make of it.

    def resolve(self, group: FusedGroup) -> None:
        """Wait until a group is reduced, and learn which of its gradients exist."""
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
            slot.base = slot.present and not (slot.cleared or slot.zeroed_later)
            slot.zeroed = slot.present and slot.zeroed_later
            if slot.apart and slot.base:
                with torch.no_grad():
                    slot.give_out()

    def _evaluate(self) -> None:
        """Learn how the round went on all ranks, and send what came late."""
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
        if any(code.late for code in codes):
            try:
                void = find_void(self._slots, self._void, self._transport)
            except InvalidUse:
                self.engine.abandon()
                raise
            self.resolve_all()
            for slot in void:
                slot.present = slot.base = False
            self._send_again(None)
        if self._keeping:
            self._keeping = False
            for slot in self._slots:
                slot.sent = None

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
        """Give them some time, and then ask: where this rank reads gradients, it may be the only one.

        A rank that waits for an update asks nobody: the others are to call ``step()`` themselves.
        """
        assert self.closing is not None
        if self._ask is None or not self._read or self.engine.done(self.closing.number, self._patience_s):
            return
        self._ask(self.turn)
        self._patience_s = _ONCE_ASKED_S

    def take_over(self) -> None:
        """Where a rank had no backward pass and others read gradients: have all go on with one rank's.

        To be called when that rank's user code is done with them, in or after ``step()``.
        """
        self._evaluate()
        if self._substitute is not None:
            owner, self._substitute = self._substitute, None
            self._send_again(owner)

    def _send_again(self, owner: int | None) -> None:
        """Run a second turn: what is reduced and what came late, or what `owner` made of it."""
        self.resolve_all()
        hidden = [slot for slot in self._slots if slot.present and not slot.base]
        submitted = [group.submitted for group in self._groups]
        code = RoundCode(late=False, read=False, idle=False, kept=self._settled, step=self.step)
        self.turn += 1
        with torch.no_grad():
            for group in self._groups:
                if group.seen:
                    self._leave_to_user(group)
                if owner is None:
                    here = [self._averaging.join(slot) for slot in group.slots]
                else:
                    here = [
                        self._averaging.hand_on(slot, mine=owner == self._transport.rank)
                        for slot in group.slots
                    ]
                self._send(group, here, code if group is self.closing else None)
        self._marks.exchange(code)
        self._evaluated = True
        self.resolve_all()
        for group, before in zip(self._groups, submitted, strict=True):
            group.submitted = before  # the next round may have begun on this rank
        for slot in hidden:
            slot.base = False

    def adopt_replaced(self, arriving: Slot | None = None) -> None:
        """Take what user code put in the place of reduced gradients for the reduced ones.

        Parameters
        ----------
        arriving
            To be left alone: autograd has just added to it.
        """
        for group in self._groups:
            take_back(group)
        if not self.scattered:
            return
        self.scattered = False
        for slot in self._slots:
            gradient = local_gradient(slot.parameter)
            if gradient is not None and slot is not arriving:
                self.resolve(slot.fused)
                slot.release_kept()
                if gradient is slot.assigned:
                    follow_assigned(slot)
                gradient = local_part(gradient)
                with torch.no_grad():
                    slot.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
                set_local_gradient(slot.parameter, None)
                slot.present = slot.base = True
                slot.zeroed = False

    def cleared(self) -> bool:
        """Whether nothing is left of a sealed round, so that what comes now begins anew."""
        self.resolve_all()
        return not any(slot.base or local_gradient(slot.parameter) is not None for slot in self._slots)

    def reopen(self, arriving: Slot | None = None) -> None:
        """Begin another turn of the same step: user code read gradients, and more are computed now.

        What is reduced stays, and new contributions add to it.

        Raises
        ------
        InvalidUse
            Where more was computed, and a rank without a backward pass may have stepped already.
        """
        self.adopt_replaced(arriving)
        self.resolve_all()
        if arriving is not None and self._substitute is not None:
            self.engine.abandon()
            raise InvalidUse(
                f"rank {self._transport.rank} ran a further backward pass when its gradients were complete,"
                " in a step in which another rank has none and cannot know of it: put all backward passes of"
                " a step but the last in no_sync(), or run one on every rank"
            )
        self._begin()
        self.sealed = False

    def end(self) -> None:
        """End the round: what comes next belongs to the next step."""
        self._begin()
        for slot in self._slots:
            slot.clears = 0
            slot.keeps = False
        for group in self._groups:
            if group.owned:
                end_owned(group)
        self.sealed = self.open = self.folded = self._read = self._settled = False
        self.step += 1

    def _begin(self) -> None:
        self.computed = self.unread = False
        for group in self._groups:
            group.missing = len(group.slots)
            group.submitted = False
            for slot in group.slots:
                slot.complete = False
                slot.passes = 0

    # The rest.

    def for_scaler(self, slot: Slot) -> tuple[bool, torch.Tensor | None]:  # noqa: ARG002
        """Return whether a GradScaler may be given a part of a gradient, and the part."""
        return False, None

    def _leave_to_user(self, group: FusedGroup) -> None:
        """Keep what user code holds on to from being overwritten."""
        if group.release_kept():
            group.allocate()
            self.engine.rebind(group.number, segment_tensors(self._plan, self._groups, group.number))
            group.settle_references()
