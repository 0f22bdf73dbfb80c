"""The wrapper around a torch optimizer: turns a training loop's calls into work for the engine.

In overlap mode ``step()`` only notes the hyper-parameters; each group's update is applied when its
parameters are about to be used. How gradients get from hooks to updates is in ``rounds``; which plan runs
in which mode is in ``choice``.
"""

import atexit
import contextlib
import json
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import structlog
import torch
from torch import nn

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.agreement import agree_on_plan, agree_on_weights
from pace.runtime.choice import Choice
from pace.runtime.compression import Compression, compressed
from pace.runtime.fetch import PlanSource
from pace.runtime.parameters import gradient_sizes, trained_parameters
from pace.runtime.peers import Peers
from pace.runtime.plan import Plan
from pace.runtime.report import Report, Totals, chrome_trace
from pace.runtime.rounds import Rounds
from pace.runtime.stand_in import StandIn
from pace.runtime.transport import Discipline, Order, Transport
from pace.runtime.update import why_not_per_group

Mode = Literal["overlap", "barrier", "auto"]
Op = Literal["average", "sum"]

log = structlog.get_logger("pace.runtime")


class WrappedOptimizer(StandIn):
    """Common to all transports; use ``pace.runtime.torch`` or ``pace.runtime.horovod``.

    Parameters
    ----------
    optimizer
        The user's optimizer; its parameter groups and state stay its own.
    model
        The module whose parameters it updates.
    source
        Where the plan comes from, now and later.
    divisor
        What gradients are divided by before they are summed, instead of what `op` says: for transports that
        do the rest of an average.
    """

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
        divisor: float | None = None,
        broadcast_parameters: bool = True,
    ) -> None:
        if backward_passes_per_step < 1:
            raise InvalidOptions(
                f"backward_passes_per_step is {backward_passes_per_step}, at least 1 is needed"
            )
        self.optimizer = optimizer
        self.model = model
        self.backward_passes_per_step = backward_passes_per_step
        self._timeout_s = timeout_s
        self._divisor = divisor or (transport.size if op == "average" else 1)
        try:
            self._transport: Transport = compressed(transport, compression)
            self._parameters = trained_parameters(model, optimizer)
            sizes = gradient_sizes(self._parameters)
            plan = agree_on_plan(transport, source.make, sizes)
            agree_on_weights(transport, model, broadcast=broadcast_parameters)
        except BaseException:
            transport.close(failed=True)  # who catches the error and wraps again is to leak no threads
            raise
        planned = set(self._parameters.values())
        self._frozen = [p for g in optimizer.param_groups for p in g["params"] if p not in planned]
        reason = why_not_per_group(optimizer)
        if reason is not None and mode != "barrier":
            log.warning("pace.barrier_mode", reason=reason)
        self._order = order
        self._peers: Peers | None = None
        self._closed = False
        self._choice = Choice(
            plan,
            source,
            sizes,
            self._transport,
            model,
            auto=mode == "auto",
            barrier=mode == "barrier" or reason is not None,
            per_group=reason is None,
            timeout_s=timeout_s,
        )
        self._plan = self._choice.running.plan
        self._barrier = self._choice.running.barrier
        self._num_plans = 0
        self._rounds = self._install(number=0, before=Totals())
        self._rounds.aside = self._choice.replanner.aside
        store = transport.peer_store
        self._peers = Peers(store, transport.rank, transport.size, self._progress) if store else None
        _live.add(self)

    def _install(self, *, number: int, before: Totals) -> Rounds:
        self._num_plans += 1
        return Rounds(
            self._plan,
            self.model,
            self.optimizer,
            self._parameters,
            self._transport,
            per_group=not self._barrier,
            discipline=self._discipline(),
            divisor=self._divisor,
            backward_passes_per_step=self.backward_passes_per_step,
            timeout_s=self._timeout_s,
            name=f"pace.{self._num_plans}",
            number=number,
            before=before,
            on_stall=self._report_stall,
            explain=self._explain_failure,
        )

    def _discipline(self) -> Discipline:
        if self._order != "auto":
            return self._order
        # Over torch.distributed every choice is a broadcast that must end before the segment starts.
        if self._transport.sequencing == "decision" or self._plan.source == "plain":
            return "static"
        return "adaptive" if self._plan.source == "schedule" else "priority"

    def _switch(self, plan: Plan, barrier: bool) -> None:
        """Go on with another plan; every rank must call this after the same step."""
        self.synchronize()
        before = self._rounds
        before.close()
        self._plan, self._barrier = plan, barrier
        self._rounds = self._install(number=before.number, before=before.totals)
        self._rounds.accumulating = before.accumulating

    def _progress(self) -> dict[str, Any]:
        return {
            "round": self._rounds.number,
            "missing": self._rounds.missing()[:20],
            "failed": self._rounds.engine.failure is not None,
        }

    def _report_stall(self, group: int) -> None:
        told = self._peers.explain_stall() if self._peers else "unknown: there is no peer store"
        log.warning("pace.stall", waiting_for=self._rounds.engine.describe(group), peers=told)

    def _explain_failure(self) -> str:
        return self._peers.explain_failure() if self._peers else ""

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
            self._end_step()
            return loss
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            hook(self.optimizer, (), {})
        self._rounds.complete()
        self._rounds.adopt_replaced()
        self._rounds.end_pending()
        self._end_step()
        return loss

    def _end_step(self) -> None:
        try:
            self._choice.after_step(self._rounds.number, self._rounds.engine.waited_s, self._switch)
        except (CommunicationFailed, RuntimeError) as error:  # what transports raise where ranks agree
            if self._rounds.engine.failure is not None:
                raise
            self._rounds.engine.abandon()
            raise CommunicationFailed(f"{error}; {self._explain_failure()}") from error
        self._rounds.aside = self._choice.replanner.aside

    def _step_at_once(self, closure: Callable[[], Any] | None) -> Any:
        """Reduce everything, then let the user's optimizer update everything."""
        rounds = self._rounds
        if closure is not None:

            def reduced() -> Any:
                with torch.enable_grad():
                    loss = closure()
                rounds.complete()
                rounds.wait_for_all()
                rounds.end()
                return self._mean(loss)

            return self.optimizer.step(reduced)
        rounds.complete()
        rounds.wait_for_all()
        rounds.adopt_replaced()
        rounds.end()
        for slot in rounds.slots:
            slot.parameter.grad = None if slot.skip else slot.view
        try:
            return self.optimizer.step()
        finally:
            for slot in rounds.slots:
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
        self._rounds.discard()
        for slot in self._rounds.slots:
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
        self._rounds.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For loops written for Horovod: ``step()`` never reduces twice, so this changes nothing."""
        yield

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in backward passes inside; the next one outside sends the sum."""
        before, self._rounds.accumulating = self._rounds.accumulating, True
        try:
            yield
        finally:
            self._rounds.accumulating = before

    @property
    def rank(self) -> int:
        """The rank of this process among those that train together."""
        return self._transport.rank

    def report(self, *, wait: bool = True) -> Report:
        """Say what is running, what it takes and what the last round looked like.

        Cheap enough to call every few seconds; counters only grow.

        Parameters
        ----------
        wait
            Whether to wait for updates in flight. Without, the report leaves out groups and segments, and
            may be asked for by any thread.
        """
        rounds, replanner = self._rounds, self._choice.replanner
        drift = replanner.drift
        if wait:
            self.synchronize()
        groups, segments = rounds.engine.last_round() if wait else ((), ())
        totals = rounds.totals
        return Report(
            mode=self._choice.running.name,
            order=self._discipline(),
            source=self._plan.source,
            rounds=rounds.number,
            iteration_s=self._choice.iteration_s,
            predicted_iteration_s=self._plan.predicted_iteration_s,
            trial_s=dict(self._choice.measured_s),
            sent_segments=totals.sent_segments,
            sent_bytes=totals.sent_bytes,
            waited_s=totals.waited_s,
            groups=groups,
            segments=segments,
            replanning=replanner.state,
            profiles=replanner.num_profiles,
            drift=drift.ratio if drift else None,
        )

    def write_timeline(self, path: str | Path) -> None:
        """Write the last round as a Chrome trace, in the form of the predicted timeline."""
        name = f"{type(self.optimizer).__name__}, rank {self._transport.rank}"
        trace = chrome_trace(self.report(), self._plan, name=name)
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    def close(self) -> None:
        """Finish what is in flight, then leave the model and the optimizer as they were found.

        After a failure nothing in flight is waited for. Idempotent.
        """
        self._close(linger=True)

    def _close(self, *, linger: bool) -> None:
        if self._closed:
            return
        failed = self._rounds.engine.failure is not None
        try:
            if not failed:
                self.synchronize()
        finally:
            self._closed = True
            self._rounds.closed = True
            failed = self._rounds.engine.failure is not None
            self._choice.close()
            if self._peers is not None:
                self._peers.close()
            self._rounds.close()
            self._transport.close(failed=failed)
            if failed and linger and self._peers is not None:
                self._peers.linger()
            _live.discard(self)

    def __enter__(self) -> "WrappedOptimizer":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


_live: "weakref.WeakSet[WrappedOptimizer]" = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    # A process that ends without close(), by an exception say, must not take its threads into the
    # interpreter's own end.
    for wrapper in list(_live):
        wrapper._rounds.engine.abandon()
        wrapper._close(linger=False)
