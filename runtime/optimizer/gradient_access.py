"""What user code reads from ``parameter.grad``, and what its assignments do.

Between a backward pass and ``step()``, it reads the reduced gradient, or None if no rank has one. All ranks
read the same. The first read seals the round and waits for the sums. An assignment before the first read is
this rank's contribution. An assignment after it replaces the reduced gradient.
"""

import time
import weakref
from typing import TYPE_CHECKING

import torch

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot
from pace.runtime.gates.call_stacks import reader
from pace.runtime.gates.gradient_gates import local_gradient, set_local_gradient
from pace.runtime.optimizer.reduction import Reduction
from pace.runtime.optimizer.usage import Usage

if TYPE_CHECKING:
    from pace.runtime.optimizer.rounds import Rounds


class GradientAccess:
    """Reads and writes gradients on behalf of user code, for the parameters of one plan.

    Attributes
    ----------
    waited_s
        How long reads before ``step()`` have waited for sums, in seconds.
    with_graph
        Whether this round's latest backward pass made a graph of the gradients, which their sums lack.
    """

    def __init__(self, rounds: "Rounds", reduction: Reduction, usage: Usage) -> None:
        self._rounds = rounds
        self._reduction = reduction
        self._usage = usage
        self.waited_s = 0.0
        self.with_graph = False

    def read(self, slot: Slot) -> torch.Tensor | None:
        """Return the value of ``parameter.grad``."""
        reduction = self._reduction
        if not reduction.open or (reduction.sealed and slot.fused.resolved):
            return self._read(slot)
        begin = time.perf_counter()
        try:
            return self._read(slot)
        finally:
            if reduction.sealed and slot.fused.resolved:
                self.waited_s += time.perf_counter() - begin

    def _read(self, slot: Slot) -> torch.Tensor | None:
        self._rounds.await_answer()
        if self._rounds.closed:
            return local_gradient(slot.parameter)
        if self._rounds.accumulating:
            return self._read_accumulating(slot)
        if torch._C._current_graph_task_id() != -1:
            return self._read_in_backward(slot)
        reduction = self._reduction
        unsealed = reduction.open and not reduction.sealed
        if unsealed or slot.fused.pending or reduction.by_rows:
            who = reader()
            if who == "tracing":
                return local_gradient(slot.parameter)
            if who == "clearing":
                return slot.view  # its values will not be read
            if who == "zeroing":
                self.zero(slot)
                return torch.zeros_like(slot.shown)
            self._refuse_graph(slot)
            self._rounds.finish(slot.fused)
            if unsealed and reduction.live():
                self._rounds.seal(read=True)
            if who == "unscaling" and reduction.sealed and reduction.by_rows:
                found, piece = reduction.for_scaler(slot)
                if found:
                    return piece
        if reduction.sealed:
            self._refuse_graph(slot)
            reduction.resolve(slot.fused)
        self._refuse_held(slot)
        reduction.unread = False
        return self._current(slot)

    def _refuse_graph(self, slot: Slot) -> None:
        if self.with_graph and torch.is_grad_enabled() and reader() == "user":
            raise InvalidUse(
                f"the gradient of {slot.name} was read after backward(create_graph=True), but its average"
                " over ranks cannot be differentiated: use torch.autograd.grad(..., create_graph=True) for"
                " what you differentiate, and torch.no_grad() to log gradients"
            )

    def _refuse_held(self, slot: Slot) -> None:
        if slot in self._reduction.held:
            raise InvalidUse(
                f"the gradient of {slot.name} was read after step(), but updates are sharded and no rank has"
                " the whole gradient then: read it before step(), or use AllReduce(sharding='off')."
                " model.to() and other conversions read gradients, too: call zero_grad() before them"
            )

    def _current(self, slot: Slot) -> torch.Tensor | None:
        local = local_gradient(slot.parameter)
        if local is not None:
            return local
        if slot.base:
            slot.fused.seen = True
            return slot.shown
        if slot.zeroed:
            slot.zeroed = False
            self._reduction.scattered = True
            zeros = torch.zeros_like(slot.shown)
            slot.assign(zeros)
            set_local_gradient(slot.parameter, zeros)
        return local_gradient(slot.parameter)

    def _read_accumulating(self, slot: Slot) -> torch.Tensor | None:
        """Return what this rank has computed, plus the earlier result."""
        local = local_gradient(slot.parameter)
        self._refuse_held(slot)
        if not slot.base or slot.fused.pending:
            return local
        return slot.shown if local is None else slot.shown + local

    def _read_in_backward(self, slot: Slot) -> torch.Tensor | None:
        local = local_gradient(slot.parameter)
        if local is None and slot.fused.submitted:
            raise InvalidUse(
                f"the gradient of {slot.name} was read during the backward pass, before the ranks have summed"
                " it: read it after backward()"
            )
        return local

    def write(self, slot: Slot, value: torch.Tensor | None) -> None:
        """Process an assignment to ``parameter.grad``."""
        self._rounds.await_answer()
        if self._rounds.closed or (self._rounds.accumulating and value is not None):
            if value is not None:
                slot.assign(value)
            set_local_gradient(slot.parameter, value)
        elif value is None:
            self.clear(slot)
        elif not (value is slot.shown and slot.base):
            self._rounds.finish(slot.fused)
            if self._reduction.sealed and self._reduction.cleared():
                self._reduction.reopen()
            if not self._reduction.sealed:
                reduced = slot.base
                if reduced and slot.fused.seen and self._reduction.sums:
                    raise InvalidUse(
                        f"the gradient of {slot.name} was read after step() and is now replaced, and with"
                        " op='sum' ranks would add it a second time: change it in place, or call zero_grad()"
                        " before you assign"
                    )
                self._reduction.drop(slot)
                slot.dropped = slot.dropped or reduced
                slot.clears += 2
                self._reduction.open = True
            elif self._reduction.unread and not _same_memory(value, slot.shown):
                raise InvalidUse(
                    f"the gradient of {slot.name} was replaced without having been read, and it is summed"
                    " already, because a rank keeps or reads gradients, or had none in a step: read"
                    " parameter.grad first and change it in place, or replace it in a backward hook"
                )
            slot.forget()
            self._reduction.scattered = True
            if value is not None:
                slot.assign(value)
            set_local_gradient(slot.parameter, value)

    def clear(self, slot: Slot) -> None:
        """Clear a gradient: set it to None."""
        with self._rounds.alone():
            self.clear_now(slot)

    def clear_now(self, slot: Slot) -> None:
        """Clear a gradient; no other thread may work on the round meanwhile."""
        if self._count_clear(slot):
            self._clear_pending(slot)
        else:
            self._clear(slot)

    def _count_clear(self, slot: Slot) -> bool:
        """Count a cleared gradient; return whether the update that uses it is still pending."""
        slot.clears += 1
        # A rank without a backward pass cannot tell the usual zero_grad() at a step's start from one that
        # discards what other ranks have computed. The second one in a step may be either.
        if slot.fused.pending and self._reduction.computed:
            self._rounds.finish(slot.fused)  # the cleared gradient belongs to the next step
        return slot.fused.pending

    def _clear_pending(self, slot: Slot) -> None:
        set_local_gradient(slot.parameter, None)
        slot.cleared_to = "none"
        slot.base = slot.zeroed = False
        if slot.fused.owned:
            slot.forget()

    def _clear(self, slot: Slot) -> None:
        if slot.fused.submitted and not self._reduction.sealed:
            self._usage.wasted()
        self._reduction.drop(slot)

    def zero(self, slot: Slot) -> None:
        """Set a gradient to zero, unless it is None."""
        with self._rounds.alone():
            self.zero_now(slot)

    def zero_now(self, slot: Slot) -> None:
        """Set a gradient to zero; no other thread may work on the round meanwhile."""
        if self._count_clear(slot):
            if slot.cleared_to == "none":
                return  # there is none any more
            self._clear_pending(slot)
            slot.cleared_to = "zero"
            slot.zeroed = slot.fused.resolved and slot.present
            return
        reduction = self._reduction
        local = local_gradient(slot.parameter)
        if local is not None and local is slot.assigned and not reduction.computed:
            with torch.no_grad():
                local.zero_()  # user code may keep it
            return
        if reduction.open and not reduction.sealed:
            submitted = slot.fused.submitted
            had = local is not None or slot.base or slot.zeroed or slot in reduction.held
            had = had or (submitted and slot.here and not slot.dropped)
            self._clear(slot)
            if not slot.dropped:
                slot.zeroed = had
            elif had:
                reduction.scattered = True
                set_local_gradient(slot.parameter, torch.zeros_like(slot.shown))
            return
        if reduction.sealed:
            reduction.resolve(slot.fused)
        elif slot in reduction.held:
            reduction.drop(slot)
            slot.zeroed = True
        with torch.no_grad():
            if local is not None:
                local.zero_()
            elif slot.base:
                slot.shown.zero_()


def _same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.data_ptr() == other.data_ptr() != 0


class Gate:
    """The gate of one parameter's gradient; it does nothing once its rounds are gone."""

    def __init__(self, access: GradientAccess, slot: Slot) -> None:
        self._access = weakref.ref(access)
        self._slot = slot

    def read(self) -> torch.Tensor | None:
        """See ``GradientGate``."""
        access = self._access()
        return local_gradient(self._slot.parameter) if access is None else access.read(self._slot)

    def write(self, value: torch.Tensor | None) -> None:
        """See ``GradientGate``."""
        access = self._access()
        if access is None:
            set_local_gradient(self._slot.parameter, value)
        else:
            access.write(self._slot, value)
