"""The wrapper around a torch optimizer: it turns a training loop's calls into work for the engine.

In overlap mode ``step()`` only records the hyper-parameters. Each group's update is applied when its
parameters are about to be used. The way of gradients from hooks to updates is in ``rounds``, the choice of
plan and mode in ``mode_choice``. When the wrapper ends, other ranks are told of it, and end with this one.
"""

import _thread
import contextlib
import json
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.argument_checks import is_number, refusal
from pace.runtime.control.agreement import agree_on_state, describe_state
from pace.runtime.control.mode_choice import Choice
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.parameters import PlannedParameters
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.control.sparse_gradients import warn_of_whole_gradients
from pace.runtime.engine.plan import SendPlan, ddp_buckets, divide
from pace.runtime.engine.report import Report, lay_out_round
from pace.runtime.engine.sharded_plan import refuse_hanging
from pace.runtime.event_log import log
from pace.runtime.gates.gated_state import GatedState, gate_state, held_by_others, held_parts, ungate_state
from pace.runtime.gates.gradient_gates import without_gates
from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.gates.optimizer_methods import step_was_replaced, zero_grad_was_replaced
from pace.runtime.gates.patches import CompiledWatch, uncompiled
from pace.runtime.gates.signal_handlers import call_postponed, postpone_handlers
from pace.runtime.optimizer.group_update import gradients_in_place
from pace.runtime.optimizer.live_wrappers import FORKED, WhereMade, enlist, live, refuse_wrapped, weakly
from pace.runtime.optimizer.poison import Poison
from pace.runtime.optimizer.reduction import Averaging
from pace.runtime.optimizer.rounds import Disciplines, Rounds, RoundSettings, choose_disciplines
from pace.runtime.optimizer.shards.checkpoint import ShardedState
from pace.runtime.optimizer.shards.shard_memory import why_not_in_shards
from pace.runtime.optimizer.shards.sharded_rounds import ShardedRounds
from pace.runtime.optimizer.stand_in import StandIn
from pace.runtime.optimizer.start import Prepare, start_together
from pace.runtime.optimizer.usage import Usage
from pace.runtime.options import Tune
from pace.runtime.transports.compression import compressed
from pace.runtime.transports.peers import LOOK_S
from pace.runtime.transports.transport import Transport

# How long, in seconds, a process that ends without close() waits for its last sums, which other ranks need
# too.
_EXIT_S = 5.0

# How long a wrapper that is dropped without close() answers other ranks that save its part of the state.
_DROPPED_S = 10.0


class WrappedOptimizer(StandIn):
    """The wrapper for all transports; create it by ``pace.runtime.torch`` or ``pace.runtime.horovod``.

    Parameters
    ----------
    optimizer
        The user's optimizer. It keeps its parameter groups and state.
    model
        The module whose parameters it updates.
    prepare
        Checks the user's arguments; see ``pace.runtime.optimizer.start``.
    """

    # The framework's wrapper of the model, which would sum gradients; None without one.
    _model_wrapper: ModelWrapper | None = None

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        transport: Transport,
        prepare: Prepare,
    ) -> None:
        self._closed = True  # until it is complete
        self._forked = False  # whether this process was forked from the one that trains
        self._told_of_norm = self._told_of_wait = self._state_is_held = False
        self._last_norm: torch.Tensor | None = None
        self._loaded: dict[str, str] = {}  # with sharded updates: the state that was loaded since

        def checked() -> tuple[WrapperOptions, PlanSource]:
            if not hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks"):
                raise InvalidUse(
                    f"{type(optimizer).__name__} does not call torch.optim.Optimizer.__init__: call it,"
                    " or wrap the inner optimizer, if there is one, and build yours around the wrapper"
                )
            refuse_wrapped(optimizer)
            return prepare()

        postpone_handlers(of_all=True)
        start = start_together(transport, optimizer, model, checked, model_wrapper=self._model_wrapper)
        options, reason = start.options, start.barrier_reason
        self.optimizer = optimizer
        self.model = model
        self.backward_passes_per_step = options.backward_passes_per_step
        self._timeout_s = options.timeout_s
        divisor, mean = options.divisor(transport.size), options.op == "average"
        self._averaging = Averaging(
            divisor=divisor,
            scale=divisor / transport.size if mean else 1,
            mean=mean,
            rank=transport.rank,
        )
        self._max_grad_norm = options.max_grad_norm
        self._usage = Usage(options.backward_passes_per_step)
        self._transport: Transport = compressed(transport, options.communication.compression)
        warn_of_whole_gradients(model, self._transport)
        self.parameters_by_name = start.parameters
        swaps = self._model_wrapper is not None and self._model_wrapper.swaps_parameters
        self._planned = PlannedParameters(
            optimizer, self.parameters_by_name.values(), None if swaps else model
        )
        if reason is not None and options.mode != "barrier" and transport.rank == 0:
            log.warning("pace.barrier_mode", reason=reason)
        self._order = options.plan.order
        self._may_shard = start.sharding != "off"
        self._choice = Choice(
            start.plan,
            start.source,
            start.sizes,
            self._transport,
            model,
            buckets=self._model_wrapper.buckets(start.parameters) if self._model_wrapper else ddp_buckets,
            auto=options.mode == "auto",
            barrier=options.mode == "barrier" or reason is not None,
            per_group=reason is None,
            sharding=start.sharding,
            timeout_s=options.timeout_s,
            tune=options.plan if isinstance(options.plan, Tune) else None,
        )
        self._sizes = start.sizes
        self._plan = self._divided(refuse_hanging(self._choice.running.plan))
        self._barrier = self._choice.running.barrier
        # Of an optimizer that may decide by a closure's loss, such as LBFGS.
        self._averages_loss = reason is not None
        self._num_plans = 0
        self._poison = Poison(transport.rank) if options.mode == "check" else None
        try:
            self._rounds = self._install(None)
        except BaseException:
            self._choice.close(failed=True)  # it may be waiting for a service
            if self._poison is not None:
                self._poison.close()
            raise
        self._gating = [
            optimizer.register_load_state_dict_pre_hook(weakly(self._before_loading)),
            optimizer.register_load_state_dict_post_hook(weakly(self._after_loading)),
        ]
        self._gate_state(replaced=False)
        self._compiled = CompiledWatch(weakly(self._keep_barrier))
        self._made = WhereMade()
        self._itself, self._id = weakref.ref(self), id(self)
        self._peers = transport.peers
        if self._peers is not None:
            self._peers.follow(self._progress, self._answer)
            self._peers.follow_state(self._give_state)
            self._peers.follow_failures(self._fail_with_others)
        self._closed = False
        enlist(self)

    def _install(self, before: Rounds | None) -> Rounds:
        self._num_plans += 1
        settings = RoundSettings(
            per_group=not self._barrier,
            disciplines=self._disciplines,
            averaging=self._averaging,
            timeout_s=self._timeout_s,
            name=f"pace.{self._num_plans}",
            on_stall=weakly(self._report_stall),
            explain=weakly(self._explain_failure, otherwise=""),
            ask=weakly(self._ask),
            compare_state=weakly(self._compare_state),
            clips=self._max_grad_norm is not None,
            model_wrapper=self._model_wrapper,
            poison=self._poison,
        )
        kind = ShardedRounds if self._plan.shards else Rounds
        return kind(
            self._plan,
            self.model,
            self.optimizer,
            self.parameters_by_name,
            self._transport,
            settings=settings,
            usage=self._usage,
            profiling=self._choice.replanner,
            before=before,
        )

    @property
    def _disciplines(self) -> Disciplines:
        order = self._plan.order or self._order
        return choose_disciplines(order, self._transport.sequencing, self._plan.source)

    def _divided(self, plan: SendPlan) -> SendPlan:
        pushed = self._transport.pushed
        return plan if pushed is None else divide(plan, self._sizes, pushed)

    def _switch(self, plan: SendPlan, barrier: bool) -> str | None:
        """Change to another plan; every rank must call this after the same step. See ``Switch``.

        Raises
        ------
        ScheduleMismatch
            If the plan can hang. Then the plan in use stays.
        """
        refuse_hanging(plan)
        self.synchronize()
        before = self._rounds
        before.hand_back()
        before.reduction.restore_held()
        before.close()
        reason = self._why_whole() if plan.shards and not self._plan.shards else None
        if reason is None:
            self._plan, self._barrier = self._divided(plan), barrier
        self._rounds = self._install(before)
        return reason

    def finish_updates(self) -> None:
        """Apply the updates of the latest ``step()``; gradients computed since then are left as they are."""
        self._rounds.finish_all()

    def _keep_barrier(self, compiler: str, module: nn.Module | None) -> None:
        """Apply all updates in ``step()`` from now on; see ``CompiledWatch``."""
        self._rounds.keep_barrier(compiler, module)

    @uncompiled
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimizer step.

        In overlap mode gradients may still be in flight when this returns. Every group's update is applied
        just before its parameters are used, with the hyper-parameters at the time of this call.

        Raises
        ------
        CommunicationFailed
            If an all-reduce failed or a peer is gone.
        InvalidUse
            If parameters were added to the optimizer since it was wrapped, or a parameter that was frozen
            then has a gradient.
        """
        self._refuse_closed()
        self._planned.refuse_others()
        self._gate_state()
        self._compiled.follow()
        at_once = self._barrier or self._step_is_replaced()
        if not at_once:
            self._tell_of_wait()
        loss = self._step_at_once(closure) if at_once else self._step_later(closure)
        self._end_step()
        return loss

    # What to do where updates wait for all gradients.
    _remedy_of_waits = 'communication=AllReduce(sharding="auto") also tries sharded updates, which wait less'

    def _speaks(self) -> bool:
        """Whether this rank logs what all ranks know."""
        return self._transport.rank == 0

    def _tell_of_wait(self) -> None:
        if self._told_of_wait or self._may_shard or self._transport.size == 1:
            return
        clips = self._max_grad_norm is not None or self._last_norm is not None
        if clips or self._rounds.access.waited_s:
            self._told_of_wait = True
            if self._speaks():
                what = "clipping by the global norm reads gradients" if clips else "gradients were read"
                log.info(
                    "pace.waits_for_gradients",
                    reason=f"{what} before updates, which wait for all gradients: {self._remedy_of_waits}",
                )

    def _step_is_replaced(self) -> bool:
        """Return whether the optimizer's ``step`` was replaced since the optimizer was wrapped.

        Raises
        ------
        InvalidUse
            If it was and updates are sharded, because the replacement cannot be called then.
        """
        if not step_was_replaced(self.optimizer):
            return False
        if self._plan.shards:
            raise InvalidUse(
                "the optimizer's step was replaced after it was wrapped, and sharded updates would not call"
                " the replacement: use AllReduce(sharding='off')"
            )
        return True

    def _step_later(self, closure: Callable[[], Any] | None) -> Any:
        """Record the hyper-parameters; updates are applied when parameters are used."""
        own = self.optimizer
        given: tuple[Any, ...] = (own,) if closure is None else (own, closure)
        named: dict[str, Any] = {}
        # As torch does, before the closure, which they may replace.
        for hook in (*_global_optimizer_pre_hooks.values(), *own._optimizer_step_pre_hooks.values()):
            changed = hook(own, given, named)
            if changed is not None:
                given, named = changed
        loss = None
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._rounds.seal(read=False)
        self._rounds.adopt_replaced()
        self._clip_at_step()
        self._rounds.end_pending()
        after = (*own._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values())
        if after:  # they expect all parameters to be updated
            self._rounds.synchronize()
        for hook in after:
            hook(own, given, named)
        return loss

    def _end_step(self) -> None:
        postpone_handlers()
        # Schedulers check this; in overlap mode the optimizer's own step() is not called.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers add it
        try:
            self._choice.after_step(
                self._rounds.number, self._rounds.engine.waited_s, self._usage.arrived, self._switch
            )
        except CommunicationFailed:
            if self._rounds.engine.failure is None:
                self._rounds.engine.abandon()
            raise
        call_postponed()

    def _step_at_once(self, closure: Callable[[], Any] | None) -> Any:
        """Reduce everything, then let the user's optimizer update everything."""
        if closure is not None:

            def reduced() -> Any:
                with torch.enable_grad():
                    loss = closure()
                self._reduce()
                decides = self._averages_loss or step_was_replaced(self.optimizer)
                return _mean_loss(loss, self._transport) if decides else loss

            return self._own_step(reduced)
        self._reduce()
        with gradients_in_place(self._rounds.slots):
            return self._own_step()

    def _own_step(self, *closure: Callable[[], Any]) -> Any:
        """Take the optimizer's own step, or the replacement of it."""
        return self.optimizer.step(*closure)

    def _reduce(self) -> None:
        self._rounds.reduce()
        self._clip_at_step()
        self._rounds.end()

    def _refuse_closed(self) -> None:
        if self._forked:
            raise InvalidUse(FORKED)
        if self._closed:
            raise InvalidUse("the wrapper was closed: step() the torch optimizer itself, or wrap it again")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, except those in flight from the last step, which are still to be applied.

        Between a backward pass and ``step()``, this discards this rank's contribution.
        """
        if self._forked or zero_grad_was_replaced(self.optimizer):
            self.optimizer.zero_grad(set_to_none)
            return
        self._rounds.zero(set_to_none=set_to_none)
        self._planned.clear_frozen()

    def synchronize(self) -> None:
        """Wait until nothing is in flight: gradients are reduced and updates applied."""
        if self._forked:
            raise InvalidUse(FORKED)
        self._rounds.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Do nothing, for loops written for Horovod: ``step()`` never reduces gradients twice."""
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in backward passes inside; the next backward pass outside sends their sum."""
        before = self._rounds.accumulating
        self._rounds.accumulate(accumulating=True)
        try:
            yield
        finally:
            self._rounds.accumulate(accumulating=before)

    # The norm of gradients.

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip all gradients together by their norm, between the backward pass and ``step()``.

        The result is that of ``torch.nn.utils.clip_grad_norm_`` for the optimizer's parameters. With sharded
        updates ranks exchange only one number for it, and gradients are not gathered. Every rank must call
        it. If the norm is not finite, all ranks drop the gradients, and ``step()`` changes nothing. On a
        GPU, sharded updates decide this there, and the host waits neither here nor in ``step()``.

        Parameters
        ----------
        max_norm
            The largest norm after clipping.
        norm_type
            Order of the norm; infinity for the largest absolute value.
        error_if_nonfinite
            Whether to raise RuntimeError, as torch does, if the norm is not finite.

        Returns
        -------
        torch.Tensor
            The norm before clipping, the same on all ranks.

        Raises
        ------
        CommunicationFailed
            If an exchange failed or a peer is gone.
        InvalidUse
            If an argument is not a positive number, or inside ``no_sync()``.
        """
        self._refuse_closed()
        _check_norms(max_norm, norm_type)
        if self._rounds.accumulating:
            raise InvalidUse("clip_grad_norm_ was called inside no_sync(): call it outside, before step()")
        norm = self._rounds.clip(float(max_norm), float(norm_type))
        self._tell_of_norm(norm)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"the total norm of order {norm_type} of the gradients is {float(norm)}, not finite"
            )
        wide = max(
            (slot.parameter.dtype for slot in self._rounds.slots), key=lambda d: d.itemsize, default=None
        )
        return norm.to(next((slot.view.device for slot in self._rounds.slots), "cpu"), wide, copy=True)

    def _clip_at_step(self) -> None:
        if self._max_grad_norm is not None:
            self._tell_of_norm(self._rounds.clip_at_step(self._max_grad_norm))

    def _tell_of_norm(self, norm: torch.Tensor) -> None:
        if not norm.is_cpu:  # told in the next step, before which the host waits for it
            last, self._last_norm = self._last_norm, norm.to("cpu", non_blocking=True)
            if last is None:
                return
            norm = last
        if not norm.isfinite() and not self._told_of_norm and self.rank == 0:
            self._told_of_norm = True
            log.warning(
                "pace.step_skipped", norm=float(norm), consequence="parameters stay as they are; logged once"
            )

    # The optimizer's state.

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's whole state, after every pending update, like a plain optimizer.

        With sharded updates this rank collects the state from the other ranks, whatever they are doing. The
        result is a copy. What would differ from torch's, which follows each step, is refused: to change it in
        place, and to load it after another ``step()`` without ``copy.deepcopy``.
        """
        self.finish_updates()
        with self._rounds.whole_state() as gathered:
            if not gathered:
                return self.optimizer.state_dict()
            with without_gates():
                return self.optimizer.state_dict()

    def _before_loading(self, _optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        self.finish_updates()
        self._rounds.refuse_copies(state_dict)

    def _after_loading(self, _optimizer: torch.optim.Optimizer) -> None:
        gate_state(self.optimizer, weakly(self._make_state_current))
        self._take_loaded()

    def _take_loaded(self) -> None:
        self._rounds.reduction.loaded = True
        if isinstance(self._rounds, ShardedRounds):
            self._loaded = describe_state(self.optimizer, self.parameters_by_name)
        self._rounds.take_state()

    def _compare_state(self) -> None:
        loaded, self._loaded = self._loaded, {}
        if not isinstance(self._rounds, ShardedRounds):
            loaded = describe_state(self.optimizer, self.parameters_by_name)
        agree_on_state(self._transport, loaded)

    def _gate_state(self, *, replaced: bool = True) -> None:
        """Make reads of the optimizer's state wait for pending updates, also after it was replaced."""
        optimizer = self.optimizer
        if isinstance(vars(optimizer)["state"], GatedState):
            return
        if held_by_others(optimizer):
            if not self._state_is_held and self.rank == 0:
                log.warning(
                    "pace.state_held",
                    consequence="the training loop keeps the dictionary of optimizer.state, so updates are"
                    " applied in step(): use optimizer.state itself to have them overlap",
                )
            self._state_is_held = True
            if isinstance(self._rounds, ShardedRounds):
                raise InvalidUse(
                    "the training loop keeps the dictionary of optimizer.state, but with sharded updates no"
                    " rank has the whole state: read optimizer.state itself each time, or use"
                    " AllReduce(sharding='off')"
                )
            return
        self._state_is_held = False
        gate_state(optimizer, weakly(self._make_state_current))
        if replaced:
            self._take_loaded()

    def _make_state_current(self) -> None:
        self.finish_updates()
        self._rounds.lend_state()

    def _why_whole(self) -> str | None:
        """Return why updates must not be sharded from now on, or None; the same on all ranks."""
        mine = why_not_in_shards(self.parameters_by_name, self.model)
        if mine is None and step_was_replaced(self.optimizer):
            mine = "the optimizer's step was replaced after it was wrapped"
        if mine is None and held_parts(self.optimizer, list(self.parameters_by_name.values())):
            mine = (
                "the training loop keeps tensors of optimizer.state, such as a loaded checkpoint's, and"
                " sharding would split them: delete the variable that refers to them"
            )
        said = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        return next((f"rank {rank}: {each}" for rank, each in enumerate(said) if each is not None), None)

    def sharded_state(self) -> ShardedState:
        """Return a copy of this rank's part of the optimizer's state, for torch.distributed.checkpoint.

        Pass it to ``dcp.save`` or ``dcp.load`` on every rank. ``dcp.load`` loads state and hyper-parameters
        into this optimizer; the number of ranks may differ from that of the checkpoint.

        Raises
        ------
        InvalidUse
            If updates are not sharded.
        """
        self.finish_updates()
        if not isinstance(self._rounds, ShardedRounds):
            raise InvalidUse("updates are not sharded, so every rank has the whole state: use state_dict()")
        return self._rounds.sharded_state()

    @property
    def state(self) -> Any:
        """The state of the user's optimizer; a read of it waits for pending updates.

        With sharded updates, a read collects the whole state on this rank, where it stays until the next
        ``step()``. Changes of it take effect.
        """
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.finish_updates()
        self.optimizer.state = state  # gated by the next step()

    # What it tells.

    @property
    def rank(self) -> int:
        """The rank of this process among those that train together."""
        return self._transport.rank

    def report(self, *, wait: bool = True) -> Report:
        """Return which plan and mode are in use, what they take, and the times of the last round.

        Cheap enough to call every few seconds. Counters only grow.

        Parameters
        ----------
        wait
            Whether to call ``synchronize()`` first; then every rank must call this. Otherwise the report has
            no groups and segments, and any thread may call this.
        """
        rounds, replanner = self._rounds, self._choice.replanner
        drift = replanner.drift
        if wait:
            self.synchronize()
        groups, segments = rounds.engine.last_round() if wait else ((), ())
        totals = rounds.totals
        return Report(
            mode=self._choice.running.name if self._poison is None else "check",
            order=self._disciplines.segments,
            source=self._plan.source,
            has_schedule=replanner.has_schedule,
            rounds=rounds.number,
            iteration_s=self._choice.iteration_s,
            predicted_iteration_s=self._plan.predicted_iteration_s,
            trial_s=dict(self._choice.measured_s),
            sent_segments=totals.sent_segments,
            sent_bytes=totals.sent_bytes,
            waited_s=totals.waited_s,
            read_wait_s=totals.read_wait_s,
            groups=groups,
            segments=segments,
            replanning=replanner.state,
            profiles=replanner.num_profiles,
            drift=drift.ratio if drift else None,
            checked_steps=0 if self._poison is None else self._poison.steps,
        )

    def write_timeline(self, path: str | Path) -> None:
        """Write the last round as a Chrome trace, to compare it with the predicted one."""
        from pace.view.perfetto import window_trace

        name = f"{type(self.optimizer).__name__}, rank {self._transport.rank}"
        window = lay_out_round(self.report(), self._plan, name=name)
        trace = window_trace(window, pid=1, plan_sha256=self._plan.sha256)
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    # Its end: by ``close``, a fork, the end of the process, or because nothing refers to it.

    def close(self) -> None:
        """Finish what is in flight, then remove all hooks from the model and the optimizer.

        After a failure it does not wait for what is in flight. Idempotent.
        """
        self._close(linger=True)

    def _close(self, *, linger: bool, reason: str | None = None, drain: bool = True) -> None:
        if self._closed:
            return
        failed = self._rounds.engine.failure is not None
        # With an exception only this rank leaves the loop, so the others would not come to meet it.
        alone = sys.exc_info()[0] is not None or reason is not None
        try:
            if drain and not failed:
                self.synchronize()
                if self._poison is not None:
                    self._poison.conclude()
                if not alone:
                    self._rounds.hand_back(last=True)
        finally:
            self._closed = True
            failed = self._rounds.engine.failure is not None
            # Each is released, from the last to the first, even if another one fails.
            with contextlib.ExitStack() as releases:
                releases.callback(live.discard, self)
                if self._peers is not None and failed and linger:
                    releases.callback(self._peers.linger)
                releases.callback(self._transport.close, failed=failed)
                releases.callback(self._rounds.close)
                if self._poison is not None:
                    releases.callback(self._poison.close)
                if self._peers is not None:
                    releases.callback(self._peers.close, reason, failed=failed)
                releases.callback(ungate_state, self.optimizer)
                releases.callback(self._compiled.close)
                for hook in self._gating:
                    releases.callback(hook.remove)
                ends_early = alone or failed or (linger and not drain)
                releases.callback(self._choice.close, failed=ends_early)

    def before_fork(self) -> None:
        """Apply pending updates: a forked process has no thread that would apply them."""
        if not self._closed and self._rounds.engine.failure is None:
            self.finish_updates()

    def after_fork_in_child(self) -> None:
        """In a forked process: change nothing; every call that needs other ranks raises from now on."""
        self._forked = self._closed = True
        self._rounds.disown()
        ungate_state(self.optimizer)

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Finish or abandon what is in flight when the process ends without ``close``."""
        engine = self._rounds.engine
        raised = uncaught is not None and issubclass(uncaught, Exception)
        if self._peers is not None and engine.failure is None:
            self._peers.close(uncaught.__name__ if uncaught else None)
        if raised or not engine.settle(_EXIT_S if uncaught is None else 0.0):
            engine.abandon()
        elif self._poison is not None and uncaught is None:
            self._poison.conclude()
        # Ranks that wait for this one notice that its connections break, and read the reason in the store of
        # the first rank.
        self._close(linger=raised, drain=False)

    def announce_end(self) -> Callable[[], bool]:
        """Say that this process ends; return a function that tells whether other ranks may still need it.

        They may save the state of sharded updates, of which this rank has a part. After the time-out, the
        function returns False.
        """
        return self._announce_end(self._timeout_s, with_process=True)

    def _announce_end(self, limit_s: float, *, with_process: bool) -> Callable[[], bool]:
        if self._peers is None or not self._rounds.shards_state or self._rounds.engine.failure is not None:
            return bool  # False
        peers, until = self._peers, time.monotonic() + limit_s
        may_ask = peers.announce_end(self._rounds.number, with_process=with_process)
        return lambda: peers.gives_state or (time.monotonic() < until and may_ask())

    def __del__(self) -> None:
        # Lightning copies the attributes of optimizers into objects of its own.
        if not getattr(self, "_closed", True) and self._id == id(self):
            self._made.end(self._end_dropped)

    def _end_dropped(self) -> None:
        # Without close(): no code can call step() any more, so only wait for updates that are due.
        interrupted = False
        try:
            if self._rounds.engine.failure is None:
                self._rounds.finish_all()
                if self._poison is not None:
                    self._poison.conclude()
                # The garbage collector, which comes at any time on each rank, clears weak references first.
                if self._itself() is not None and not sys.is_finalizing():
                    may_ask = self._announce_end(_DROPPED_S, with_process=False)
                    try:
                        while may_ask():
                            time.sleep(LOOK_S)
                    except KeyboardInterrupt:
                        interrupted = True
                if self._peers is not None:
                    self._peers.close()  # before anything is abandoned, so that no other rank is blamed
        finally:
            self._rounds.engine.abandon()
            self._close(linger=False)
            if interrupted:  # Python ignores what is raised while an object is dropped
                threading.Timer(LOOK_S, _thread.interrupt_main).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        self._close(linger=True, reason=None if kind is None else kind.__name__)

    # What other ranks ask and are told, through the peer store.

    def _ask(self, turn: int) -> None:
        if self._peers is not None:
            self._peers.ask(turn)

    def _answer(self, turn: int) -> bool:
        return self._rounds.answer(turn)

    def _progress(self) -> dict[str, Any]:
        return {
            "round": self._rounds.number,
            "open": self._rounds.reduction.open,
            "missing": self._rounds.missing()[:20],
            "failed": self._rounds.engine.failure is not None,
            "waits_s": self._made.waits_s(),
        }

    def _report_stall(self, group: int) -> None:
        told = self._peers.explain_stall() if self._peers else "unknown: there is no peer store"
        log.warning("pace.stall", waiting_for=self._rounds.engine.describe(group), peers=told)

    def _fail_with_others(self, told: str) -> None:
        """Abandon what this rank waits for: another rank has failed, for the reason `told`."""
        engine = self._rounds.engine
        if engine.failure is None:
            ranks = f"rank {self._transport.rank} of {self._transport.size}"
            engine.abandon(CommunicationFailed(f"{ranks}: training has ended on another rank: {told}"))

    def _explain_failure(self) -> str:
        return self._peers.explain_failure() if self._peers else ""

    def _give_state(self, asked: list[int]) -> bool:
        return self._rounds.give_state(asked)


def _mean_loss(loss: Any, transport: Transport) -> Any:
    """Return the mean of a closure's loss over all ranks, so that all optimizers decide the same."""
    if not isinstance(loss, torch.Tensor | float):
        return loss
    losses = [float(each) for each in transport.gather(repr(float(loss)).encode())]
    mean = math.fsum(losses) / len(losses)
    return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean


def _check_norms(max_norm: float, norm_type: float) -> None:
    """Check the arguments of ``clip_grad_norm_``.

    Raises
    ------
    InvalidUse
        If one is not a positive number; the message names it.
    """
    if not is_number(max_norm) or not max_norm > 0:
        raise InvalidUse(str(refusal("max_norm", max_norm, "a positive number")))
    if not is_number(norm_type) or not norm_type > 0:
        raise InvalidUse(str(refusal("norm_type", norm_type, "a positive number, or infinity,")))
