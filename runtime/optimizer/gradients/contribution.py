"""One rank's contribution to a turn: gradients arrive, are copied into their groups' buffers, and are sent.

It also keeps what arrives after its group was sent, and withdraws what user code clears. When a contribution
is final, and what becomes of the contributions of all ranks, is in ``reduction``.
"""

import torch

from pace.runtime.control.sparse_gradients import buffer_runs
from pace.runtime.engine.buffers import FusedGroup, Slot, segment_tensors
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.local_parts import local_part
from pace.runtime.engine.plan import SendPlan
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient
from pace.runtime.optimizer.gradients.averaging import Averaging
from pace.runtime.optimizer.gradients.kept_gradients import follow_assigned, take_back
from pace.runtime.optimizer.gradients.round_codes import RoundCode
from pace.runtime.optimizer.gradients.round_marks import RoundMarks
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import Transport


class Contribution:
    """The groups' buffers and marks, and what this rank has put into them.

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
    """

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
        self._keeping = False
        self.folded = False
        self.open = False
        self.computed = False
        self.sealed = False
        self.scattered = False

    def _marks_of(self, groups: list[FusedGroup]) -> RoundMarks:
        return RoundMarks(self._transport, len(groups), scale=self._averaging.scale)

    @property
    def engine(self) -> Engine:
        """The engine that sends the groups."""
        assert self._engine is not None
        return self._engine

    def arrive(self, slot: Slot) -> None:
        """Mark a gradient as complete; send its group if it was the last one."""
        slot.complete = True
        group = slot.fused
        group.missing -= 1
        if not group.missing and group is not self.closing:
            self._submit(group)

    def _submit(self, group: FusedGroup, code: RoundCode | None = None) -> None:
        """Copy this rank's gradients into the group's buffer and submit it to the engine."""
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
        if slot.complete and not slot.fused.submitted:
            slot.complete = False
            slot.fused.missing += 1

    def _leave_to_user(self, group: FusedGroup) -> None:
        """Move gradients that user code refers to out of the buffer, which will be overwritten."""
        if group.release_kept():
            group.allocate()
            self.engine.rebind(group.number, segment_tensors(self._plan, self._groups, group.number))
            group.settle_references()
