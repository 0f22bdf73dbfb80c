"""The wrapper around a torch optimizer: turns a training loop's calls into work for the engine.

A *round* begins with the first gradient handed over after a step and ends with the next ``step()``.
In every round every group is submitted exactly once on every rank, with zeros for gradients that this
rank did not compute: that is what keeps ranks in step. In overlap mode ``step()`` only notes the
hyper-parameters; each group's update is applied when its parameters are about to be used.
"""

import atexit
import collections
import contextlib
import json
import math
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import structlog
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.agreement import agree_on_plan
from pace.runtime.buffers import FusedGroup, Slot, build_groups, segment_tensors
from pace.runtime.compression import Compression, compressed
from pace.runtime.engine import Engine
from pace.runtime.fetch import PlanSource
from pace.runtime.forward import ForwardWatch
from pace.runtime.late import STEPS_BETWEEN, LateSchedule
from pace.runtime.parameters import gradient_sizes, trained_parameters
from pace.runtime.peers import Peers
from pace.runtime.plan import Plan, plan_plainly
from pace.runtime.report import Report, chrome_trace
from pace.runtime.transport import Order, Transport
from pace.runtime.trial import Candidate, Trial
from pace.runtime.update import GroupUpdate, why_not_per_group

Mode = Literal["overlap", "barrier", "auto"]
Op = Literal["average", "sum"]

log = structlog.get_logger("pace.runtime")


class WrappedOptimizer(torch.optim.Optimizer):
    """Common to all transports; use ``pace.runtime.torch`` or ``pace.runtime.horovod``.

    Parameters
    ----------
    optimizer
        The user's optimizer; its parameter groups and state stay its own.
    model
        The module whose parameters it updates.
    source
        Where the plan comes from, now and later.
    """

    # Optimizer.__init__ is not called: everything it would hold is the wrapped optimizer's.
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        transport: Transport,
        source: PlanSource,
        mode: Mode,
        order: Order,
        op: Op,
        compression: Compression,
        backward_passes_per_step: int,
        timeout_s: float,
    ) -> None:
        if backward_passes_per_step < 1:
            raise InvalidOptions(
                f"backward_passes_per_step is {backward_passes_per_step}, at least 1 is needed"
            )
        self.optimizer = optimizer
        self.model = model
        self.backward_passes_per_step = backward_passes_per_step
        self._transport: Transport = compressed(transport, compression)
        self._timeout_s = timeout_s
        self._divisor = transport.size if op == "average" else 1
        self._lock = threading.RLock()
        self._num_pending = 0
        self._round_open = False
        self._round = 0
        self._peers: Peers | None = None
        self._accumulating = False
        self._learning = True
        self._entered = False
        self._closed = False
        self._at_entry: list[FusedGroup] = []
        self._at_step: list[FusedGroup] = []
        self._handles: list[Any] = []
        self._groups: list[FusedGroup] = []
        self._slots: list[Slot] = []
        self._watch: ForwardWatch | None = None
        self._parameters = trained_parameters(model, optimizer)
        planned = set(self._parameters.values())
        self._frozen = [p for g in optimizer.param_groups for p in g["params"] if p not in planned]
        sizes = gradient_sizes(self._parameters)
        self._plan = agree_on_plan(transport, source.make, sizes)
        reason = why_not_per_group(optimizer)
        if reason is not None and mode != "barrier":
            log.warning("pace.barrier_mode", reason=reason)
        self._barrier = mode == "barrier" or reason is not None
        self._trial: Trial | None = None
        self._measured_s: dict[str, float] = {}
        self._auto = mode == "auto"
        self._per_group = reason is None
        self._source = source
        self._sizes = sizes
        self._late: LateSchedule | None = None
        # All ranks hold the same plan, so they agree on whether to look out for a better one.
        self._expects_schedule = source.asks and self._plan.source != "schedule"
        if self._expects_schedule and transport.rank == 0:
            self._late = LateSchedule(lambda: source.ask(sizes))
        if self._auto:
            self._plan, self._barrier = self._begin_trial(self._plan)
        self._adaptive = order == "adaptive" or (order == "auto" and transport.sequencing == "submission")
        self._installed = 0
        self._last_step_s: float | None = None
        self._intervals: collections.deque[float] = collections.deque(maxlen=50)
        self._install()
        store = transport.peer_store
        self._peers = Peers(store, transport.rank, transport.size, self._progress) if store else None
        _live.add(self)

    def _install(self) -> None:
        """Lay out buffers for the plan, start an engine, and attach hooks and gates."""
        self._groups = build_groups(self._plan, self._parameters)
        self._slots = [slot for group in self._groups for slot in group.slots]
        self._installed += 1
        self._engine = Engine(
            self._plan,
            segment_tensors(self._plan, self._groups),
            self._transport,
            adaptive=self._adaptive,
            timeout_s=self._timeout_s,
            name=f"pace.{self._installed}",
            on_stall=self._report_stall,
            explain=self._explain_failure,
        )
        for slot in self._slots:
            slot.shared.settle = _weakly(self, slot)
            register: Any = slot.parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._handles.append(register(self._hook(slot)))
        self._update = None if self._barrier else GroupUpdate(self.optimizer, self._groups)
        self._watch = ForwardWatch(
            self.model,
            {slot.parameter: slot for slot in self._slots},
            use=self._use,
            look=self._look,
            enter=self._enter,
        )
        self._learning = True

    def _uninstall(self) -> None:
        """Take hooks and gates off and stop the engine, which must have nothing left to do."""
        if self._watch is not None:
            self._watch.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for slot in self._slots:
            if slot.parameter.grad is slot.shared:
                slot.parameter.grad = slot.view
        self._engine.close()

    def _switch(self, plan: Plan, *, barrier: bool) -> None:
        """Go on with another plan; every rank must call this after the same step."""
        self.synchronize()
        self._uninstall()
        self._plan, self._barrier = plan, barrier
        self._install()

    def _begin_trial(self, plan: Plan) -> tuple[Plan, bool]:
        """Start to time plain operation against a plan; returns what to run first."""
        candidates = [
            Candidate(name="plain", plan=plan_plainly(self._sizes), barrier=True),
            Candidate(name="barrier", plan=plan, barrier=True),
        ]
        if self._per_group:
            candidates.append(Candidate(name="overlap", plan=plan, barrier=False))
        self._trial = Trial(candidates, self._transport)
        return candidates[0].plan, candidates[0].barrier

    def _look_for_schedule(self) -> None:
        """Adopt a schedule that came late, on all ranks after the same step."""
        if self._trial is not None or self._round % STEPS_BETWEEN:
            return
        payload = self._transport.broadcast(self._late.poll() if self._late is not None else b"")
        if not payload:
            return
        self._expects_schedule = False
        plan = self._source.read(payload, self._sizes)
        if plan is not None:
            log.info("pace.schedule_adopted", round=self._round, groups=len(plan.groups))
            first, barrier = self._begin_trial(plan) if self._auto else (plan, self._barrier)
            self._switch(first, barrier=barrier)

    def _count_step(self) -> None:
        now = time.perf_counter()
        if self._last_step_s is not None:
            self._intervals.append(now - self._last_step_s)
            if self._trial is not None and self._trial.record(self._intervals[-1]):
                chosen = self._trial.current
                self._switch(chosen.plan, barrier=chosen.barrier)
                if self._trial.winner is not None:
                    self._measured_s = self._trial.measured_s
                    self._trial = None
                    log.info("pace.mode_chosen", mode=chosen.name, measured_s=self._measured_s)
                now = time.perf_counter()
                self._intervals.clear()
        if self._expects_schedule:
            self._look_for_schedule()
            now = time.perf_counter()
        self._last_step_s = now

    def _progress(self) -> dict[str, Any]:
        missing = [group.number for group in self._groups if not group.submitted]
        return {
            "round": self._round,
            "missing": missing[:20] if self._round_open else [],
            "failed": self._engine.failure is not None,
        }

    def _report_stall(self, group: int) -> None:
        told = self._peers.explain_stall() if self._peers else "unknown: there is no peer store"
        log.warning("pace.stall", waiting_for=self._engine.describe(group), peers=told)

    def _explain_failure(self) -> str:
        return self._peers.explain_failure() if self._peers else ""

    def _hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        def hook(_parameter: torch.Tensor) -> None:
            if self._accumulating:
                return
            slot.passes += 1
            if self._learning:
                self._hold(slot)
            elif slot.passes >= slot.expected:
                self._hand_over(slot)

        return hook

    def _hold(self, slot: Slot) -> None:
        """Keep a gradient of the first round until ``step()``: more may come for the same parameter."""
        gradient = slot.parameter.grad
        if gradient is not slot.shared and gradient is not None:
            with torch.no_grad():
                slot.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            slot.parameter.grad = slot.shared
        self._round_open = True

    def _hand_over(self, slot: Slot) -> None:
        group = slot.fused
        if slot.filled:
            raise InvalidUse(
                f"the gradient of {slot.name} was computed again before step(): it is already being"
                f" all-reduced; accumulate with backward_passes_per_step or no_sync()"
            )
        if group.pending:
            raise InvalidUse(
                f"{slot.name} was used in a way the runtime cannot see before its last update was applied;"
                f" call synchronize() before using it"
            )
        self._fill(slot)
        with self._lock:
            group.missing -= 1
            self._round_open = True
            if group.missing:
                return
            group.submitted = True
        self._engine.submit(group.number)

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

    def _complete_round(self) -> None:
        """Submit every group that is not yet, with zeros for gradients that were not computed."""
        if self._learning and self._round_open:
            self._learn()
        for group in self._groups:
            if group.submitted:
                continue
            self._finish(group)
            for slot in group.slots:
                if not slot.filled:
                    self._fill(slot)
            group.missing = 0
            group.submitted = True
            self._round_open = True
            self._engine.submit(group.number)

    def _end_round(self, *, pending: bool) -> None:
        for group in self._groups:
            group.missing = len(group.slots)
            group.submitted = False
            group.pending = pending
            for slot in group.slots:
                slot.filled = False
                slot.passes = 0
        self._num_pending = len(self._groups) if pending else 0
        self._round += 1
        self._round_open = False

    def _wait_for_all(self) -> None:
        for group in self._groups:
            self._engine.wait(group.number)

    def _finish(self, group: FusedGroup) -> None:
        """Wait for a group's all-reduce and apply its update, if one is pending."""
        if not group.pending:
            return
        with self._lock:
            self._apply(group)

    def _apply(self, group: FusedGroup) -> None:
        if not group.pending:  # another thread was faster
            return
        self._engine.wait(group.number)
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

    def _learn(self) -> None:
        """Draw conclusions from the first round.

        How often each gradient arrives in a round (reentrant checkpoints deliver in parts), and which
        parameters were used without the gates noticing.
        """
        assert self._watch is not None
        for slot in self._slots:
            slot.expected = max(slot.passes, self.backward_passes_per_step)
        unseen = [slot for slot in self._slots if slot.passes and not slot.claimed]
        groups = {slot.fused.number: slot.fused for slot in (*unseen, *self._watch.ungated)}
        late = list(groups.values())
        self._at_entry, self._at_step = (late, []) if self._entered else ([], late)
        self._learning = False

    def _settle(self, slot: Slot) -> None:
        """Make a gradient readable: what user code that touches ``parameter.grad`` waits for."""
        group = slot.fused
        if group.pending:
            self._finish(group)
        elif self._round_open and not self._closed:
            if not group.submitted:
                if torch._C._current_graph_task_id() != -1:
                    raise InvalidUse(
                        f"the gradient of {slot.name} was read during the backward pass, before its"
                        f" all-reduce could start"
                    )
                self._complete_round()
            self._engine.wait(group.number)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step.

        In overlap mode the gradients may still be in flight when this returns: every group's update is
        applied with the hyper-parameters in force now, just before its parameters are used.

        Raises
        ------
        CommunicationFailed
            When an all-reduce failed or a peer is gone.
        InvalidUse
            When a parameter that was frozen at the start has a gradient now.
        """
        self._refuse_unplanned()
        if self._barrier:
            loss = self._step_at_once(closure)
            self._count_step()
            return loss
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            hook(self.optimizer, (), {})
        self._complete_round()
        self._adopt_replaced()
        assert self._update is not None
        self._update.snapshot()
        self._end_round(pending=True)
        for group in self._at_step:
            self._finish(group)
        self._count_step()
        return loss

    def _adopt_replaced(self) -> None:
        """Respect gradients that the user replaced or took away after the backward pass."""
        for slot in self._slots:
            gradient = slot.parameter.grad
            slot.skip = gradient is None
            if gradient is not slot.shared and gradient is not None:
                self._engine.wait(slot.fused.number)
                with torch.no_grad():
                    slot.view.copy_(gradient)
                slot.parameter.grad = slot.shared

    def _step_at_once(self, closure: Callable[[], Any] | None) -> Any:
        """Reduce everything, then let the user's optimizer update everything."""
        if closure is not None:

            def reduced() -> Any:
                with torch.enable_grad():
                    loss = closure()
                self._complete_round()
                self._wait_for_all()
                self._end_round(pending=False)
                return self._mean(loss)

            return self.optimizer.step(reduced)
        self._complete_round()
        self._wait_for_all()
        self._adopt_replaced()
        self._end_round(pending=False)
        for slot in self._slots:
            slot.parameter.grad = None if slot.skip else slot.view
        try:
            return self.optimizer.step()
        finally:
            for slot in self._slots:
                slot.parameter.grad = None if slot.skip else slot.shared

    def _mean(self, loss: Any) -> Any:
        """Average a closure's loss: optimizers that decide by it must decide alike on all ranks."""
        if not isinstance(loss, torch.Tensor | float):
            return loss
        said = [float(each) for each in self._transport.gather(repr(float(loss)).encode())]
        mean = math.fsum(said) / len(said)
        return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean

    def _refuse_unplanned(self) -> None:
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise InvalidUse(
                    "a parameter that was frozen when the optimizer was wrapped has a gradient now:"
                    " wrap the optimizer again after changing requires_grad"
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients; those still in flight from the last step stay untouched until applied.

        Called between a backward pass and ``step()``, it discards the round: every rank must do so.
        """
        if self._round_open:
            self._complete_round()
            self._wait_for_all()
            self._end_round(pending=False)
        for slot in self._slots:
            slot.passes = 0
            if set_to_none:
                slot.parameter.grad = None
            elif slot.parameter.grad is slot.shared:
                if slot.fused.pending:
                    slot.fused.zero_after = True
                else:
                    slot.view.zero_()
            elif slot.parameter.grad is not None:
                slot.parameter.grad.zero_()

    def synchronize(self) -> None:
        """Wait until nothing is in flight: gradients are reduced and updates applied."""
        for group in self._groups:
            self._finish(group)
        if self._round_open:
            self._complete_round()
            self._wait_for_all()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For loops written for Horovod: ``step()`` never reduces twice, so this changes nothing."""
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in backward passes inside; the next one outside sends the sum."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state after every pending update."""
        self.synchronize()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state, after every pending update."""
        self.synchronize()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refused: the schedule covers the parameters there were when the optimizer was wrapped."""
        raise InvalidUse(
            "add_param_group: the plan covers the parameters that the optimizer had when it was wrapped;"
            " add the group to the optimizer itself and wrap it again"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own parameter groups."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's optimizer's own defaults."""
        return self.optimizer.defaults

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's optimizer's own state, after every pending update."""
        self.synchronize()
        return self.optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def report(self) -> Report:
        """Say what is running, what it takes and what the last round looked like.

        Cheap enough to call every few seconds; counters only grow. Waits for updates in flight.
        """
        self.synchronize()
        groups, segments = self._engine.last_round()
        return Report(
            mode="barrier" if self._barrier else "overlap",
            order="adaptive" if self._adaptive else "static",
            source=self._plan.source,
            rounds=self._round,
            iteration_s=statistics.median(self._intervals) if self._intervals else None,
            predicted_iteration_s=self._plan.predicted_iteration_s,
            trial_s=dict(self._measured_s),
            sent_segments=self._engine.sent_segments,
            sent_bytes=self._engine.sent_bytes,
            waited_s=self._engine.waited_s,
            groups=groups,
            segments=segments,
        )

    def write_timeline(self, path: str | Path) -> None:
        """Write the last round as a Chrome trace, in the form of the predicted timeline."""
        name = f"{type(self.optimizer).__name__}, rank {self._transport.rank}"
        trace = chrome_trace(self.report(), self._plan, name=name)
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    def close(self) -> None:
        """Finish what is in flight, then leave the model and the optimizer as they were found.

        After a failure nothing is waited for. Idempotent.
        """
        if self._closed:
            return
        failed = self._engine.failure is not None
        try:
            if not failed:
                self.synchronize()
        finally:
            self._closed = True
            failed = self._engine.failure is not None
            if self._late is not None:
                self._late.close()
            if self._peers is not None:
                self._peers.close()
            self._uninstall()
            self._transport.close(failed=failed)
            _live.discard(self)

    def __enter__(self) -> "WrappedOptimizer":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


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


def _weakly(wrapper: WrappedOptimizer, slot: Slot) -> Callable[[], None]:
    reference = weakref.ref(wrapper)

    def settle() -> None:
        alive = reference()
        if alive is not None:
            alive._settle(slot)

    return settle


_live: "weakref.WeakSet[WrappedOptimizer]" = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    # A process that ends without close(), by an exception say, must not take its threads into the
    # interpreter's own end.
    for wrapper in list(_live):
        wrapper._engine.abandon()
        wrapper.close()
