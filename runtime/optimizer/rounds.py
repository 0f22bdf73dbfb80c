"""Rounds of gradients under one plan: from the hook that receives a gradient to the update that uses it.

A round ends with the next ``step()``. This module has the hooks and the order of events. The sums are in
``reduction``, user code's access to gradients in ``gradient_access``, and its calls in ``wrapped_optimizer``.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import FusedGroup, Slot, build_groups, segment_tensors
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.plan import SendPlan
from pace.runtime.engine.report import Totals
from pace.runtime.engine.sends import SegmentMemory
from pace.runtime.gates.gradient_gates import close_gate, local_gradient, open_gate, set_local_gradient
from pace.runtime.gates.gradient_hooks import hook_gradient
from pace.runtime.gates.guarded_tensors import (
    forget_guards,
    guard,
    without_guards,
)
from pace.runtime.gates.memory_watch import MemoryWatch
from pace.runtime.gates.model_wrapper import refuse_local_step
from pace.runtime.gates.parameter_gates import Attention, ForwardWatch
from pace.runtime.gates.patches.backward_end import after_backward, watch_backward
from pace.runtime.optimizer.gradients.gradient_access import Gate, GradientAccess
from pace.runtime.optimizer.gradients.reduction import Reduction
from pace.runtime.optimizer.group_update import (
    GroupUpdate,
    TwinOptimizer,
    gradients_in_place,
    take_existing,
)
from pace.runtime.optimizer.live_wrappers import weakly
from pace.runtime.optimizer.pending_updates import ForkedGate, UpdateGuard, refuse_forked
from pace.runtime.optimizer.round_answers import RoundAnswers
from pace.runtime.optimizer.round_settings import Profiling, RoundSettings
from pace.runtime.optimizer.usage import Usage
from pace.runtime.transports.transport import Transport


class Rounds(RoundAnswers):
    """The buffers for a plan, a running engine, and the hooks and gates on parameters, until ``close``.

    Parameters
    ----------
    usage
        What earlier rounds, also those under other plans, learned about the training loop.
    profiling
        Tells whether iterations are being profiled. Gradients are then sent in ``step()`` only, so that
        compute runs alone.
    before
        The rounds under the previous plan, which are closed; None at the start.

    Attributes
    ----------
    accumulating
        Whether gradients are only accumulated, not sent.
    closed
        Whether the wrapper is closing, so that nothing is reduced any more.
    """

    def __init__(
        self,
        plan: SendPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        transport: Transport,
        *,
        settings: RoundSettings,
        usage: Usage,
        profiling: Profiling,
        before: "Rounds | None",
    ) -> None:
        self._plan, self._transport = plan, transport
        self.reduction = self._lay_out(parameters, settings)
        self.slots = [slot for group in self.groups for slot in group.slots]
        self._usage = usage
        self._profiling = profiling
        self._model_wrapper = settings.model_wrapper
        self._poison = settings.poison
        self._before = Totals()
        self.accumulating = False
        if before is not None:
            self._before = before.totals
            self.accumulating = before.accumulating
            self.reduction.step, self.reduction.turn = before.reduction.step, before.reduction.turn
        self.closed = False
        self._lock = threading.RLock()
        self._num_pending = self._num_arrived = 0
        self._accumulated = False
        self._thread = threading.get_ident()
        self._asked = (0, 0, False)
        self._answering = self._entered = False
        self._backward = -1
        usage.lay_out(self.slots)
        self._at_entry, self._at_step = self._groups_with(usage.at_entry), self._groups_with(usage.at_step)
        self.access = GradientAccess(self, self.reduction, usage)
        self._gates = [(slot, Gate(self.access, slot)) for slot in self.slots]
        self._handles = [hook_gradient(self, slot) for slot in self.slots]
        self._update = self._update_of(optimizer) if settings.per_group else None
        # Without pending updates, the use of a parameter has nothing to wait for.
        watched = {slot.parameter: slot for slot in self.slots} if settings.per_group else {}
        self._attention = Attention()
        watch_backward()
        self._watch = ForwardWatch(
            model,
            watched,
            attention=self._attention,
            use=self._use,
            enter=self._enter,
            model_wrapper=self._model_wrapper,
        )
        guarded = self.slots if settings.per_group else []
        self._guarded = [slot.parameter for slot in guarded]
        self._guards = {id(slot.parameter): UpdateGuard(self, slot) for slot in guarded}
        self._held_state = settings.held_state
        self._parameters = [slot.parameter for slot in self.slots]
        self._attend()
        # Last, so that a model that cannot be hooked leaves no thread behind.
        self.engine = Engine(
            plan,
            self._tensors(),
            transport,
            discipline=settings.disciplines.segments,
            pushed_discipline=settings.disciplines.pushed,
            timeout_s=settings.timeout_s,
            name=settings.name,
            on_stall=settings.on_stall,
            explain=settings.explain,
        )
        self.reduction.attach(self.engine, settings.ask)
        for slot, gate in self._gates:
            take_existing(slot)
            open_gate(slot.parameter, gate)
        own = tuple if self._model_wrapper is None else self._model_wrapper.sharing
        self._memory_watch = MemoryWatch(guarded, own=own, moved=self._moves_parameters)
        if self._learning:
            self._guard()

    groups: list[FusedGroup]

    # Whether the runtime holds the memory of parameters.
    _moves_parameters = False

    def _lay_out(self, parameters: Mapping[str, nn.Parameter], settings: RoundSettings) -> Reduction:
        """Allocate `groups`, the buffers in which gradients are summed."""
        self.groups = build_groups(self._plan, parameters, num_ranks=self._transport.size)
        return Reduction(self._plan, self.groups, self._transport, settings.averaging)

    def _update_of(self, optimizer: torch.optim.Optimizer) -> TwinOptimizer:
        return GroupUpdate(optimizer, self.groups)

    def _tensors(self) -> Sequence[SegmentMemory]:
        """Return the memory that each segment sends."""
        return segment_tensors(self._plan, self.groups)

    def close(self) -> None:
        """Remove hooks and gates and stop the engine, which must have no work left."""
        self.closed = True
        self._unguard(self.slots)
        forget_guards(self._guards)
        self._watch.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        kept = {group.number for group in self.groups if group.is_kept}
        for slot, gate in self._gates:
            close_gate(slot.parameter, gate)
            if local_gradient(slot.parameter) is None and slot.base:
                # Outside the buffers of these rounds, unless user code refers to that memory anyway.
                shown = slot.shown if slot.apart or slot.fused.number in kept else slot.shown.clone()
                set_local_gradient(slot.parameter, shown)
        self._gates.clear()
        self.engine.close()

    def disown(self) -> None:
        """In a forked process: give the complete gradients back to torch, without waiting."""
        self.closed = True
        self._watch.close()
        for handle in self._handles:
            handle.remove()
        for slot, gate in self._gates:
            close_gate(slot.parameter, gate)
            if slot.fused.pending:
                guard(slot.parameter, refuse_forked)
                continue
            if self.reduction.open and not (self.reduction.sealed and slot.fused.resolved):
                open_gate(slot.parameter, ForkedGate())
            elif local_gradient(slot.parameter) is None and slot.base:
                set_local_gradient(slot.parameter, slot.shown)

    @property
    def totals(self) -> Totals:
        """What was sent and waited for, in these rounds and all before; any thread may call it."""
        return Totals(
            sent_segments=self._before.sent_segments + self.engine.sent_segments,
            sent_bytes=self._before.sent_bytes + self.engine.sent_bytes,
            waited_s=self._before.waited_s + self.engine.waited_s,
            read_wait_s=self._before.read_wait_s + self.access.waited_s,
        )

    def missing(self) -> list[int]:
        """Return the groups that this rank has not submitted in the current round."""
        return [group.number for group in self.groups if not group.submitted] if self.reduction.open else []

    # From the backward pass to the engine.

    def arrived(self, slot: Slot) -> None:
        """Process a gradient to which autograd has just added."""
        if self._answering:
            self.await_answer()
        if self._model_wrapper is not None and self._model_wrapper.quiet != self.accumulating:
            self.accumulate(accumulating=self._model_wrapper.quiet, arriving=slot)
        if self.accumulating:
            self._accumulated = True
            self._settle_after_backward(torch._C._current_graph_task_id())
            return
        reduction = self.reduction
        if slot.fused.pending:
            raise InvalidUse(
                f"{slot.name} was used in a way the runtime cannot see before its last update was applied;"
                f" call synchronize() before using it"
            )
        if self._poison is not None:
            self._poison.check(f"the gradient of {slot.name}", local_gradient(slot.parameter))
        self._num_arrived += 1
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self.access.with_graph = torch.is_grad_enabled()  # in backward(create_graph=True)
            if self._transport.device is not None:
                self._transport.device.note_queue()
            self._settle_after_backward(backward)
        if reduction.sealed:
            self._reopen(slot)
        reduction.open = reduction.computed = True
        slot.passes += 1
        if slot.fused.submitted or slot.dropped:
            reduction.scattered = True
            return
        if slot.passes == slot.expected and self._usage.eager and self._profiling.aside is None:
            with self._lock:
                reduction.arrive(slot)

    def _settle_after_backward(self, backward: int) -> None:
        """Complete the gradients that user code keeps when the current backward pass ends.

        User code can read and change them without ``parameter.grad``: through tensors from earlier steps, or
        in its own flat buffer.
        """
        self._backward = backward
        if backward != -1 and self.reduction.settles:
            after_backward(weakly(self._settle))

    def _settle(self) -> None:
        if self.closed:
            return
        kept = self.reduction.settle()
        if self.accumulating:
            for group in kept:
                self.reduction.fold(group)
            return
        if self.reduction.live() and not self.reduction.sealed:
            self.seal(read=True)
            self.reduction.unread = True
        for group in kept:
            self.reduction.resolve(group)

    def _reopen(self, slot: Slot | None) -> None:
        for each in self.slots:
            if each.passes > each.expected:
                self._usage.adapt(each)
        self.reduction.reopen(slot)

    def accumulate(self, *, accumulating: bool, arriving: Slot | None = None) -> None:
        """Begin or end accumulation without sending; see ``Reduction.adopt_replaced`` for `arriving`."""
        self.await_answer()
        if accumulating and self.reduction.sealed:
            self.reduction.adopt_replaced(arriving)
        self.accumulating = accumulating
        if self._accumulated and not accumulating:
            self._accumulated = False
            if self.reduction.sealed:
                self._reopen(None)
            self.reduction.open = self.reduction.scattered = True

    def seal(self, *, read: bool) -> None:
        """Make this rank's contribution final: submit the remaining groups, zeros for missing gradients."""
        if self._model_wrapper is not None and self._accumulated and not read:
            refuse_local_step(self._model_wrapper, self.slots)
        with self._lock:
            if self.reduction.sealed:
                if read or not self.reduction.cleared():
                    return
                # Other ranks may have computed more since gradients were read and cleared; this rank has not.
                self.reduction.reopen()
            aside = self._profiling.aside
            if aside is None:
                self._seal(read)
                return
            with aside():
                self._seal(read)
                self.settle_aside()

    def _seal(self, read: bool) -> None:
        self.finish_all()
        if self.reduction.live():
            self._learn()
        self.reduction.seal(read=read)

    def _learn(self) -> None:
        # The first round shows how often gradients arrive (reentrant checkpoints deliver in parts). The first
        # round with guards shows which parameters were used without the gates noticing.
        if not self._usage.learned:
            self._usage.learn_passes(self.slots)
        if self._update is None or self._usage.watched:
            return
        unseen = {slot.name for slot in self.slots if slot.passes and not slot.claimed}
        unseen |= {slot.name for slot in self._watch.unseen}
        unreadable = {slot.name for slot in self._watch.unreadable}
        if not self._entered:
            unseen, unreadable = set(), unreadable | unseen
        self._usage.learn_uses(at_entry=frozenset(unseen), at_step=frozenset(unreadable))
        self._unguard(self.slots)
        self._at_entry = self._groups_with(self._usage.at_entry)
        self._at_step = self._groups_with(self._usage.at_step)

    # The end of a round.

    def end(self) -> None:
        """End a round whose update the caller has applied."""
        self._end(pending=False)

    def end_pending(self) -> None:
        """End a round whose updates are applied later, with the current hyper-parameters."""
        assert self._update is not None
        self._update.snapshot()
        kept = self.reduction.kept
        self._end(pending=True)
        self._guard()
        for group in kept:
            self.finish(group)
        self._finish_unguarded()
        self._poison_pending()

    def _end(self, *, pending: bool) -> None:
        self.await_answer()
        for slot in self.slots:
            if slot.passes != slot.expected:
                self._usage.adapt(slot)
        self._usage.end_round()
        self.access.with_graph = False
        self._thread = threading.get_ident()
        self.reduction.end()
        for group in self.groups:
            group.pending = pending
        self._num_pending = len(self.groups) if pending else 0
        self._attend()

    def wait_for_all(self) -> None:
        """Wait until every group of a sealed round is reduced."""
        self.await_answer()
        self.reduction.resolve_all()

    def adopt_replaced(self) -> None:
        """Use the gradients with which user code replaced reduced ones."""
        self.await_answer()
        self.reduction.adopt_replaced()

    def synchronize(self) -> None:
        """Wait until gradients are reduced and updates applied; nothing is then in flight."""
        self.await_answer()
        self.finish_all()
        if self.reduction.live():
            self.seal(read=True)
        if self.reduction.sealed:
            self.wait_for_all()

    def zero(self, *, set_to_none: bool) -> None:
        """Clear all gradients, except those in flight for the update of the last step."""
        self.await_answer()
        change = self.access.clear_now if set_to_none else self.access.zero_now
        with without_guards():
            for slot in self.slots:
                change(slot)
        self.reduction.live()

    @contextlib.contextmanager
    def gradients_in_place(self) -> Iterator[None]:
        """Inside, torch's own gradients are the reduced gradients, without gates, for an optimizer."""
        with gradients_in_place(self.slots):
            yield
