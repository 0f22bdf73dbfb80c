"""Rounds of gradients: from the hook that sees one to the update that uses it, for one plan.

A *round* begins with the first gradient handed over after a step and ends with the next ``step()``.
In every round every group is submitted exactly once on every rank, with zeros for gradients that this
rank did not compute: that is what keeps ranks in step. Here live buffers, hooks and the engine of one
plan; what the training loop calls lives in ``optimizer``, which plan to run in ``choice``.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.buffers import FusedGroup, Slot, build_groups, segment_tensors
from pace.runtime.engine import Engine
from pace.runtime.forward import ForwardWatch
from pace.runtime.plan import Plan
from pace.runtime.report import Totals
from pace.runtime.transport import Discipline, Transport
from pace.runtime.update import GroupUpdate


class Rounds:
    """Buffers laid out for a plan, a running engine, hooks and gates attached; until ``close``.

    Parameters
    ----------
    per_group
        Whether groups are updated one by one as they are needed, instead of all in ``step()``.
    discipline
        Who decides which segment goes next.
    divisor
        What gradients are divided by before they are summed.
    backward_passes_per_step
        The least number of times that a gradient is accumulated into before it is complete.
    number
        How many rounds have ended before.
    before
        What was sent and waited for in them.
    on_stall, explain
        See ``Engine``.

    Attributes
    ----------
    open
        Whether a gradient of the next step has been seen.
    accumulating
        Whether gradients only add up for now.
    closed
        Whether the wrapper is being closed: nothing is reduced any more.
    aside
        While iterations are being profiled: what communication happens in. Gradients are then kept until
        ``step()``, so that compute runs alone.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        transport: Transport,
        *,
        per_group: bool,
        discipline: Discipline,
        divisor: float,
        backward_passes_per_step: int,
        timeout_s: float,
        name: str,
        number: int,
        before: Totals,
        on_stall: Callable[[int], None],
        explain: Callable[[], str],
    ) -> None:
        self.groups = build_groups(plan, parameters)
        self.slots = [slot for group in self.groups for slot in group.slots]
        self.number = number
        self._before = before
        self.open = False
        self.accumulating = False
        self.closed = False
        self.aside: Callable[[], contextlib.AbstractContextManager[None]] | None = None
        self._divisor = divisor
        self._backward_passes_per_step = backward_passes_per_step
        self._lock = threading.RLock()
        self._num_pending = 0
        self._learning = True
        self._entered = False
        self._at_entry: list[FusedGroup] = []
        self._at_step: list[FusedGroup] = []
        self._handles: list[Any] = []
        for slot in self.slots:
            slot.shared.settle = _weakly(self, slot)
            register: Any = slot.parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._handles.append(register(self._hook(slot)))
        self._update = GroupUpdate(optimizer, self.groups) if per_group else None
        self._watch = ForwardWatch(
            model,
            {slot.parameter: slot for slot in self.slots},
            use=self._use,
            look=self._look,
            enter=self._enter,
        )
        # Last: a model that cannot be hooked is to leave no thread behind.
        self.engine = Engine(
            plan,
            segment_tensors(plan, self.groups),
            transport,
            discipline=discipline,
            timeout_s=timeout_s,
            name=name,
            on_stall=on_stall,
            explain=explain,
        )

    def close(self) -> None:
        """Take hooks and gates off and stop the engine, which must have nothing left to do."""
        self._watch.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for slot in self.slots:
            if slot.parameter.grad is slot.shared:
                slot.parameter.grad = slot.view
        self.engine.close()

    @property
    def totals(self) -> Totals:
        """What was sent and waited for, in these rounds and before; for any thread."""
        return Totals(
            sent_segments=self._before.sent_segments + self.engine.sent_segments,
            sent_bytes=self._before.sent_bytes + self.engine.sent_bytes,
            waited_s=self._before.waited_s + self.engine.waited_s,
        )

    def missing(self) -> list[int]:
        """Groups that this rank has not submitted in the round now open."""
        return [group.number for group in self.groups if not group.submitted] if self.open else []

    # From the backward pass to the engine.

    def _hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        def hook(_parameter: torch.Tensor) -> None:
            if self.accumulating:
                return
            slot.passes += 1
            if self._learning or self.aside is not None:
                self._hold(slot)
            elif slot.passes >= slot.expected:
                self._hand_over(slot)

        return hook

    def _hold(self, slot: Slot) -> None:
        """Keep a gradient until ``step()``: in the first round, more may come for the same parameter."""
        self._refuse_more(slot)
        gradient = slot.parameter.grad
        if gradient is not slot.shared and gradient is not None:
            with torch.no_grad():
                slot.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            slot.parameter.grad = slot.shared
        self.open = True

    def _hand_over(self, slot: Slot) -> None:
        group = slot.fused
        self._refuse_more(slot)
        if group.pending:
            raise InvalidUse(
                f"{slot.name} was used in a way the runtime cannot see before its last update was applied;"
                f" call synchronize() before using it"
            )
        self._fill(slot)
        with self._lock:
            group.missing -= 1
            self.open = True
            if group.missing:
                return
            group.submitted = True
        self.engine.submit(group.number)

    def _refuse_more(self, slot: Slot) -> None:
        if slot.filled:
            raise InvalidUse(
                f"the gradient of {slot.name} was computed again before step(): it is already being"
                f" all-reduced; accumulate with backward_passes_per_step or no_sync()"
            )

    def _fill(self, slot: Slot) -> None:
        """Bring this rank's contribution into the buffer, scaled for the average."""
        gradient = slot.parameter.grad
        view = slot.view
        with torch.no_grad():
            if gradient is None:
                view.zero_()
                if slot.passes:  # computed, then taken away: the update is to leave the parameter alone
                    slot.filled = True
                    return
            elif gradient is slot.shared:
                if self._divisor != 1:
                    view.div_(self._divisor)
            else:
                if gradient.is_sparse:
                    gradient = gradient.to_dense()
                if self._divisor != 1:
                    torch.div(gradient, self._divisor, out=view)
                else:
                    view.copy_(gradient)
        slot.parameter.grad = slot.shared
        slot.filled = True

    def complete(self) -> None:
        """Submit every group that is not yet, with zeros for gradients that were not computed."""
        if self.aside is None:
            self._submit_rest()
            return
        with self.aside():
            self._submit_rest()
            self.wait_for_all()

    def _submit_rest(self) -> None:
        if self._learning and self.open:
            self._learn()
        for group in self.groups:
            if group.submitted:
                continue
            self._finish(group)
            for slot in group.slots:
                if not slot.filled:
                    self._fill(slot)
            group.missing = 0
            group.submitted = True
            self.open = True
            self.engine.submit(group.number)

    def _learn(self) -> None:
        """Draw conclusions from the first round.

        How often each gradient arrives in a round (reentrant checkpoints deliver in parts), and which
        parameters were used without the gates noticing.
        """
        for slot in self.slots:
            slot.expected = max(slot.passes, self._backward_passes_per_step)
        unseen = [slot for slot in self.slots if slot.passes and not slot.claimed]
        unreadable = {slot.fused.number: slot.fused for slot in self._watch.unreadable}
        late = {slot.fused.number: slot.fused for slot in (*unseen, *self._watch.unseen)}
        if not self._entered:
            unreadable, late = unreadable | late, {}
        self._at_entry, self._at_step = list(late.values()), list(unreadable.values())
        self._learning = False

    # The end of a round.

    def end(self) -> None:
        """End a round whose gradients the caller has used."""
        self._end(pending=False)

    def end_pending(self) -> None:
        """End a round whose updates follow when they are needed, with the hyper-parameters of now."""
        assert self._update is not None
        self._update.snapshot()
        self._end(pending=True)
        for group in self._at_step:
            self._finish(group)

    def _end(self, *, pending: bool) -> None:
        for group in self.groups:
            group.missing = len(group.slots)
            group.submitted = False
            group.pending = pending
            for slot in group.slots:
                slot.filled = False
                slot.passes = 0
        self._num_pending = len(self.groups) if pending else 0
        self.number += 1
        self.open = False

    def wait_for_all(self) -> None:
        """Wait until every group that was submitted is reduced."""
        for group in self.groups:
            self.engine.wait(group.number)

    def adopt_replaced(self) -> None:
        """Respect gradients that the user replaced or took away after the backward pass."""
        for slot in self.slots:
            gradient = slot.parameter.grad
            slot.skip = gradient is None
            if gradient is not slot.shared and gradient is not None:
                self.engine.wait(slot.fused.number)
                with torch.no_grad():
                    slot.view.copy_(gradient)
                slot.parameter.grad = slot.shared

    def discard(self) -> None:
        """End the round, if one is open, without using its gradients; every rank must do so."""
        if self.open:
            self.complete()
            self.wait_for_all()
            self.end()

    def synchronize(self) -> None:
        """Wait until nothing is in flight: gradients are reduced and updates applied."""
        for group in self.groups:
            self._finish(group)
        if self.open:
            self.complete()
            self.wait_for_all()

    # From the engine to the parameters.

    def _finish(self, group: FusedGroup) -> None:
        """Wait for a group's all-reduce and apply its update, if one is pending."""
        if not group.pending:
            return
        with self._lock:
            self._apply(group)

    def _apply(self, group: FusedGroup) -> None:
        if not group.pending:  # another thread was faster
            return
        self.engine.wait(group.number)
        assert self._update is not None
        group.pending = False
        self._num_pending -= 1
        with _plain_mode(group.buffer.device.type):
            self._update.apply(group.number)
            if group.zero_after:
                group.zero_after = False
                group.buffer.zero_()

    def _look(self, slots: Iterable[Slot]) -> None:
        if self._num_pending:
            for slot in slots:
                if slot.fused.pending:
                    self._finish(slot.fused)

    def _use(self, slots: Iterable[Slot]) -> None:
        if self._num_pending:
            self._look(slots)
        if self._learning:
            for slot in slots:
                slot.claimed = True

    def _enter(self) -> None:
        self._entered = True
        if self._num_pending:
            for group in self._at_entry:
                self._finish(group)

    def settle(self, slot: Slot) -> None:
        """Make a gradient readable: what user code that touches ``parameter.grad`` waits for."""
        group = slot.fused
        if group.pending:
            self._finish(group)
        elif self.open and not self.closed:
            if not group.submitted:
                if torch._C._current_graph_task_id() != -1:
                    raise InvalidUse(
                        f"the gradient of {slot.name} was read during the backward pass, before its"
                        f" all-reduce could start"
                    )
                self.complete()
            self.engine.wait(group.number)


@contextlib.contextmanager
def _plain_mode(device: str) -> Iterator[None]:
    """Undo what the forward pass that is about to start may have switched on.

    Optimizer state made in inference mode could never be updated outside it.
    """
    with torch.inference_mode(False), torch.no_grad():
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                yield
        else:
            yield


def _weakly(rounds: Rounds, slot: Slot) -> Callable[[], None]:
    reference = weakref.ref(rounds)

    def settle() -> None:
        alive = reference()
        if alive is not None:
            alive.settle(slot)

    return settle
