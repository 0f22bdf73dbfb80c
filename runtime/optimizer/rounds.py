"""Rounds of gradients under one plan: from the hook that receives a gradient to the update that uses it.

A round ends with the next ``step()``. Updates are applied then, or each just before its parameters are used.
The sums are in ``reduction``, user code's access to gradients in ``gradient_access``, and its calls in
``wrapped_optimizer``.
"""

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from pace.errors import InvalidUse, PaceError
from pace.runtime.control.replanner import Replanner
from pace.runtime.engine.buffers import Awaited, FusedGroup, Slot, build_groups, segment_tensors
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.plan import SendPlan
from pace.runtime.engine.report import Totals
from pace.runtime.engine.sends import SegmentMemory
from pace.runtime.gates.call_stacks import in_collective
from pace.runtime.gates.function_watch import ignore_functions, watch_functions
from pace.runtime.gates.gated_state import held_parts
from pace.runtime.gates.gradient_gates import close_gate, local_gradient, open_gate, set_local_gradient
from pace.runtime.gates.guarded_tensors import (
    forget_guards,
    guard,
    guard_all,
    unguard_all,
    without_guards,
)
from pace.runtime.gates.memory_watch import MemoryWatch
from pace.runtime.gates.model_wrapper import ModelWrapper, refuse_local_step, refuse_reducing
from pace.runtime.gates.parameter_gates import Attention, ForwardWatch
from pace.runtime.gates.patches import after_backward, watch_backward
from pace.runtime.optimizer.gradient_access import Gate, GradientAccess
from pace.runtime.optimizer.group_update import GroupUpdate, TwinOptimizer, plain_mode, take_existing
from pace.runtime.optimizer.live_wrappers import FORKED, weakly
from pace.runtime.optimizer.poison import Poison
from pace.runtime.optimizer.reduction import Averaging, Reduction, coefficient_for
from pace.runtime.optimizer.usage import Usage
from pace.runtime.transports.transport import Discipline, Order, Sequencing, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Disciplines:
    """What decides which segment is sent next.

    Attributes
    ----------
    segments
        The discipline of all segments, except those of `pushed`.
    pushed
        The discipline of segments that are sent over parameter servers in a job that also all-reduces.
    """

    segments: Discipline
    pushed: Discipline


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How gradients are summed and updates applied under one plan.

    Attributes
    ----------
    per_group
        Whether each group is updated when its parameters are needed, instead of all groups in ``step()``.
    disciplines
        What decides which segment is sent next.
    averaging
        How sums become what the update uses.
    timeout_s
        How long to wait for a transfer, in seconds.
    name
        Name in threads and collectives.
    on_stall, explain
        See ``Engine``.
    ask
        See ``Reduction.attach``.
    compare_state
        See ``Reduction.attach``.
    clips
        Whether every ``step()`` clips gradients by their norm.
    model_wrapper
        The framework's wrapper of the model, which tells which backward passes only accumulate; None without
        one.
    poison
        Poisons parameters while their updates are pending; None except in mode="check".
    """

    per_group: bool
    disciplines: Disciplines
    averaging: Averaging
    timeout_s: float
    name: str
    on_stall: Callable[[int], None]
    explain: Callable[[], str]
    ask: Callable[[int], None]
    compare_state: Callable[[], None]
    clips: bool = False
    model_wrapper: ModelWrapper | None = None
    poison: Poison | None = None


def choose_disciplines(
    order: Order, sequencing: Sequencing, source: Literal["schedule", "local", "plain"]
) -> Disciplines:
    """Return the disciplines that the user chose, or else those that suit the transport and the plan."""
    if order != "auto":
        return Disciplines(segments=order, pushed=order)
    pushed: Discipline = "priority" if source == "local" else "overtake"
    if sequencing == "keyed":  # no rank waits for the choice of another
        return Disciplines(segments=pushed, pushed=pushed)
    # Over torch.distributed every choice is a broadcast that must end before the segment starts.
    if sequencing == "decision" or source == "plain":
        return Disciplines(segments="static", pushed=pushed)
    return Disciplines(segments="adaptive" if source == "schedule" else "priority", pushed=pushed)


class Rounds:
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
    groups
        The buffers in which gradients are summed.
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
        profiling: Replanner,
        before: "Rounds | None",
    ) -> None:
        self._plan, self._transport = plan, transport
        self.groups, self._awaited, self.reduction = self._lay_out(parameters, settings)
        self.slots = [slot for group in self.groups for slot in group.slots]
        self._optimizer = optimizer
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
            self.reduction.loaded = before.reduction.loaded
        self.closed = False
        self._lock = threading.RLock()
        self._num_pending = self._num_arrived = 0
        self._claimed: set[Slot] = set()  # whose parameters a gate or a guard saw in use
        self._accumulated = False
        self._awaited_of = {slot: each for each in self._awaited for slot in each.slots}
        self._thread = threading.get_ident()
        self._asked = (0, 0, False)
        self._answering = self._entered = False
        self._early = False  # whether groups of this turn are sent as soon as their gradients have arrived
        self._backward = -1
        self._at_entry, self._at_step = self._groups_with(usage.at_entry), self._groups_with(usage.at_step)
        self.access = GradientAccess(self, self.reduction, usage)
        self._gates = [(slot, Gate(self.access, slot)) for slot in self.slots]
        self._handles = [_hook_gradient(self, slot) for slot in self.slots]
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
        self.reduction.attach(self.engine, settings.ask, settings.compare_state)
        for slot, gate in self._gates:
            take_existing(slot)
            open_gate(slot.parameter, gate)
        own = tuple if self._model_wrapper is None else self._model_wrapper.sharing
        self._memory_watch = MemoryWatch(guarded, own=own, moved=self._moves_parameters)
        if self._watch.hidden is not None:
            self.keep_barrier(self._watch.hidden, model)
        elif self._learning:
            self._guard()
        if settings.per_group:
            usage.tell_of_barrier()

    # Whether the runtime holds the memory of parameters.
    _moves_parameters = False

    def _lay_out(
        self, parameters: Mapping[str, nn.Parameter], settings: RoundSettings
    ) -> tuple[list[FusedGroup], Sequence[Awaited], Reduction]:
        """Allocate buffers; return them, what uses of parameters may have to wait for, and the reduction."""
        groups = build_groups(self._plan, parameters, num_ranks=self._transport.size)
        reduction = Reduction(groups, self._transport, settings.averaging, tensors_of=self._tensors)
        return groups, groups, reduction

    def _update_of(self, optimizer: torch.optim.Optimizer) -> TwinOptimizer:
        return GroupUpdate(optimizer, self.groups)

    def _tensors(self, only: int | None = None) -> Sequence[SegmentMemory]:
        """Return the memory that each segment sends, or that each segment of one group does."""
        return segment_tensors(self._plan, self.groups, only)

    def close(self) -> None:
        """Remove hooks and gates and stop the engine, which must have no work left."""
        self.closed = True
        self._unguard(self.slots)
        if forget_guards(self._guards):
            ignore_functions()
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
        if self._update is not None:
            self._update.release()
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

    @property
    def number(self) -> int:
        """The number of rounds that have ended."""
        return self.reduction.step

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
        if self._awaited_of[slot].pending:
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
        if not reduction.computed:  # neither changes before the turn ends
            self._early = self._usage.eager and self._profiling.aside is None
        reduction.open = reduction.computed = True
        slot.passes += 1
        if not self._usage.learned:
            self._usage.note_arrival(slot.name)
        if slot.fused.submitted or slot.dropped:
            reduction.scattered = True
            return
        if self._early and slot.passes == self._usage.expected[slot.name]:
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
        expected = self._usage.expected
        self._usage.adapt({s.name: s.passes for s in self.slots if s.passes > expected[s.name]})
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

    def _passes(self) -> dict[str, int]:
        return {slot.name: slot.passes for slot in self.slots}

    def _learn(self) -> None:
        # The first round shows how often gradients arrive (reentrant checkpoints deliver in parts). The first
        # round with guards shows which parameters were used without the gates noticing.
        if not self._usage.learned:
            self._usage.learn_passes(self._passes())
        if self._update is None or self._usage.watched:
            return
        unseen = {slot.name for slot in self.slots if slot.passes and slot not in self._claimed}
        at_entry, at_step = (unseen, set()) if self._entered else (set(), unseen)
        self._usage.learn_uses(at_entry=frozenset(at_entry), at_step=frozenset(at_step))
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
        with self._lock:  # another thread may use parameters
            self._update.snapshot()
            kept = self.reduction.kept
            self._end(pending=True)
            self._guard()
            for group in kept:
                self.finish(group)
            self._finish_unguarded(self._shared())
            self._watch_pending()

    def _end(self, *, pending: bool) -> None:
        self.await_answer()
        self._usage.end_round(self._passes())
        self.access.with_graph = False
        self._thread = threading.get_ident()
        self.reduction.end()
        for each in self._awaited:
            each.pending = pending
        self._num_pending = len(self._awaited) if pending else 0
        self._attend()

    def reduce(self) -> None:
        """Seal the round and wait for all of it, as user code and ranks without a backward pass left it."""
        self.seal(read=False)
        self.await_answer()
        self.reduction.resolve_all()
        self.adopt_replaced()
        self.reduction.take_over()

    def adopt_replaced(self) -> None:
        """Use the gradients with which user code replaced reduced ones."""
        self.await_answer()
        self.reduction.adopt_replaced()

    def settle_aside(self) -> None:
        """While iterations are recorded, wait for what the update needs as soon as the round is sealed."""
        self.reduction.resolve_all()

    def clip(self, max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip all gradients of a round by their norm, and return it; clear them if it is not finite."""
        if not self.reduction.sealed:
            self.seal(read=True)
        read = [(slot, self.access.read(slot)) for slot in self.slots]
        gradients = [gradient for _, gradient in read if gradient is not None]
        if not gradients:
            return torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(each, norm_type, dtype=torch.float64) for each in gradients]
            norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type).cpu()
            if not math.isfinite(norm):
                for slot, gradient in read:
                    if gradient is not None:
                        self.access.clear(slot)
                return norm
            coefficient = float(coefficient_for(max_norm, norm))
            if coefficient < 1.0:
                torch._foreach_mul_(gradients, coefficient)
        return norm

    def clip_at_step(self, max_norm: float) -> torch.Tensor:
        """Clip a round that is sealed, as a part of ``step()`` on every rank; see ``clip``."""
        self.reduction.take_over()
        return self.clip(max_norm, 2.0)

    def synchronize(self) -> None:
        """Wait until gradients are reduced and updates applied; nothing is then in flight."""
        self.await_answer()
        self.finish_all()
        if self.reduction.live():
            self.seal(read=True)
        if self.reduction.sealed:
            self.await_answer()
            self.reduction.resolve_all()

    def zero(self, *, set_to_none: bool) -> None:
        """Clear all gradients, except those in flight for the update of the last step."""
        change = self.access.clear_now if set_to_none else self.access.zero_now
        with self._lock, without_guards():
            for slot in self.slots:
                change(slot)
        self.reduction.live()

    # Answers to a rank that waits for a round while this rank waits in a collective of user code.

    def answer(self, turn: int) -> bool:
        """Seal the round for another rank that waits for it, if this rank waits in a collective of user code.

        The rank that asks reads gradients that the other ranks do not read, and comes to that collective
        later. So every rank that waits there has computed all gradients of the round. Another thread calls
        this repeatedly. It acts when nothing has changed between two calls.

        Returns
        -------
        bool
            Whether the round was sealed.
        """
        before, self._asked = self._asked, (turn, self._num_arrived, in_collective(self._thread))
        if before != (now := self._asked) or not now[-1] or self.reduction.turn >= turn or self._busy():
            return False
        if not self._lock.acquire(timeout=0.1):
            return False
        try:
            self._answering = True
            # From here on the training thread waits before it uses any gradient.
            unchanged = (turn, self._num_arrived, in_collective(self._thread)) == now
            if not unchanged or self.reduction.sealed or self._busy():
                return False
            device = self._transport.device
            with contextlib.nullcontext() if device is None else device.in_noted_queue():
                self.seal(read=False)
                self.reduction.unread = True
                # Another turn may follow, in which the asking rank needs this rank too.
                with contextlib.suppress(PaceError):  # the training thread will raise it
                    self.reduction.resolve_all()
        finally:
            self._answering = False
            self._lock.release()
        return True

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """Inside, no other thread answers another rank, or applies an update."""
        return self._lock

    def await_answer(self) -> None:
        """Wait until an answer that another thread gives for this rank is finished."""
        if self._answering:
            with self._lock:
                pass

    def _busy(self) -> bool:
        return self.accumulating or self.closed or self._profiling.aside is not None

    # Pending updates: each is applied just before its parameters are used.

    @property
    def _learning(self) -> bool:
        return self._update is not None and not self._usage.watched

    def _attend(self) -> None:
        self._attention.needed = self._learning or self._num_pending > 0
        if not self._attention.needed and forget_guards(self._guards):
            ignore_functions()

    def _groups_with(self, names: frozenset[str]) -> Sequence[Awaited]:
        return [each for each in self._awaited if any(slot.name in names for slot in each.slots)]

    def finish(self, group: Awaited) -> None:
        """Wait for a group's all-reduce and apply its update, if one is pending."""
        if group.pending:
            with self._lock:
                self._apply(group)

    def _apply(self, group: Awaited) -> None:
        if not group.pending:  # another thread was faster
            return
        assert isinstance(group, FusedGroup)
        assert isinstance(self._update, GroupUpdate)
        device = group.buffer.device.type
        with without_guards(), plain_mode(device):
            self.reduction.resolve(group)
            self.reduction.take_over()
            if device != "cpu":
                self._unguard(group.slots)  # torch's optimizers choose kernels by the class of parameters
            try:
                if self._poison is not None:
                    self._poison.give_back(group.slots)
                    self._poison.check("a sum of gradients", [s.view for s in group.slots if s.present])
                self._update.apply(group.number)
            finally:
                self._end_pending(group, group.slots)
        for slot in group.slots:
            slot.cleared_to = None

    def _end_pending(self, group: Awaited, slots: Sequence[Slot]) -> None:
        group.pending = False
        self._num_pending -= 1
        self._attend()
        self._unguard(slots if not self._learning else [slot for slot in slots if slot in self._claimed])

    # Guards: no code uses a parameter whose update is pending.

    def _guard(self) -> None:
        guard_all(self._guarded, self._guards)

    @staticmethod
    def _unguard(slots: Iterable[Slot]) -> None:
        unguard_all([slot.parameter for slot in slots])

    def make_current(self, slot: Slot) -> None:
        """Apply a parameter's pending update; the parameter is about to be used."""
        self._claimed.add(slot)
        with self._lock:  # this may be another thread than that which takes the next step
            self.finish(self._awaited_of[slot])
            unguard_all([slot.parameter])

    def finish_all(self) -> None:
        """Apply all pending updates."""
        if self._num_pending:
            for each in self._awaited:
                self.finish(each)

    def _use(self, slots: Iterable[Slot]) -> None:
        self._claimed.update(slots)
        for slot in slots:
            self.finish(self._awaited_of[slot])

    def _enter(self) -> None:
        refuse_reducing(self._model_wrapper)
        self._entered = True
        ignore_functions()
        if self._num_pending:
            for group in self._at_entry:
                self.finish(group)

    # Updates applied in ``step()``, or before code whose use of parameters cannot be noticed.

    def _shared(self) -> list[Slot]:
        """Return the slots whose parameters or state share memory with what user code refers to."""
        shared: set[torch.Tensor] = {slot.parameter for slot in self._memory_watch.shared()}
        shared.update(held_parts(self._optimizer, self._guarded))
        return [slot for slot in self.slots if slot.parameter in shared] if shared else []

    def _finish_unguarded(self, shared: Sequence[Slot]) -> None:
        """Apply the updates of parameters and state that user code could use or change unnoticed."""
        for group in self._at_step:
            self.finish(group)
        if shared:
            self._usage.tell_of_sharing([slot.name for slot in shared], self._transport.rank)
        for slot in shared:
            self.finish(self._awaited_of[slot])

    def _watch_pending(self) -> None:
        """Watch for uses of parameters whose updates are still pending after ``step()``, or poison them."""
        if self._poison is None:
            if self._num_pending:
                watch_functions()
        elif self._update is not None:
            pending = [slot for slot in self.slots if self._awaited_of[slot].pending]
            self._poison.place(pending, self._update.states())

    def keep_barrier(self, compiler: str, module: nn.Module | None = None) -> None:
        """Apply all updates in ``step()`` from now on, as compiled code uses parameters unnoticed.

        Parameters
        ----------
        module
            The module whose code it is; None if it may be any code.
        """
        parameters = None if module is None else set(module.parameters())
        if parameters is None and self._watch.announced:
            return  # it uses what was gathered of them
        if parameters is None or not parameters.isdisjoint(slot.parameter for slot in self.slots):
            self._usage.need_barrier(compiler, [slot.name for slot in self.slots])
            self._at_step = self._groups_with(self._usage.at_step)
            for slot in self.slots:
                self.make_current(slot)
            if self._update is not None:
                self._usage.tell_of_barrier()

    # The optimizer's state. Every rank has all of it, unless updates are sharded.

    # Whether other ranks need this one to save the optimizer's state.
    shards_state = False

    def hand_back(self, *, last: bool = False) -> None:
        """Give the user's optimizer the state that is kept elsewhere.

        Parameters
        ----------
        last
            Whether this is the last call in which this rank takes part.
        """

    def lend_state(self) -> None:
        """Give the user's optimizer its whole state, and take over changes that user code makes to it."""

    def refuse_copies(self, state_dict: dict[str, Any]) -> None:
        """Check that a state to be loaded is not what ``state_dict()`` returned before an earlier step."""

    def whole_state(self) -> contextlib.AbstractContextManager[bool]:
        """Inside, the user's optimizer has its whole state; yields whether it was gathered only for this."""
        return contextlib.nullcontext(enter_result=False)

    def give_state(self, asked: list[int]) -> bool:  # noqa: ARG002
        """Answer another rank that asks for state; return whether the answer was complete."""
        return False

    def take_state(self) -> None:
        """Move the user's optimizer's state to where it is kept during training."""


def _hook_gradient(rounds: Rounds, slot: Slot) -> Any:
    """Tell rounds whenever autograd has added to a gradient; return the handle of this hook."""
    # Weakly, as parameters outlive wrappers and must not keep them alive.
    reference = weakref.ref(rounds)

    def hook(_parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive.arrived(slot)

    register: Any = slot.parameter.register_post_accumulate_grad_hook  # untyped in torch
    if slot.parameter.requires_grad:
        return register(hook)
    slot.parameter.requires_grad_(True)  # a frozen parameter may be trained later
    try:
        return register(hook)
    finally:
        slot.parameter.requires_grad_(False)


class UpdateGuard:
    """The guard of one parameter; it does nothing once its rounds are gone."""

    __slots__ = ("_rounds", "_slot")

    def __init__(self, rounds: Rounds, slot: Slot) -> None:
        self._rounds = weakref.ref(rounds)
        self._slot = slot

    def __call__(self, tensor: torch.Tensor) -> None:
        """Apply the parameter's pending update; called before any use of it."""
        rounds = self._rounds()
        if rounds is None:
            unguard_all([tensor])
        else:
            rounds.make_current(self._slot)


class ForkedGate:
    """The gate of a gradient that was being summed when this process was forked; every access raises."""

    def read(self) -> torch.Tensor | None:
        """See ``GradientGate``."""
        raise InvalidUse(FORKED)

    def write(self, _value: torch.Tensor | None) -> None:
        """See ``GradientGate``."""
        raise InvalidUse(FORKED)


def refuse_forked(_tensor: torch.Tensor) -> None:
    """Raise: this is the guard of a parameter whose update was pending when this process was forked."""
    raise InvalidUse(FORKED)
