"""The wrapper for asynchronous training, in which parameter servers hold the weights.

Every ``step()`` runs the user's optimizer on this rank's gradients alone and pushes the change of the
weights. The servers add the change to the weights that all ranks share, and the rank pulls these. Of
embeddings with sparse gradients, only rows that have changed are sent.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn

from pace.documents.steps import StepsDocument
from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.argument_checks import refusal
from pace.runtime.capture.step_recorder import ExchangedSegment, StepRecorder
from pace.runtime.capture.touched_rows import sparse_tables
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.control.sparse_gradients import warn_of_whole_gradients
from pace.runtime.entry_point import TrainingOptions, connecting_timeout_s, prepare, refuse_unknown_arguments
from pace.runtime.optimizer.live_wrappers import FORKED, WhereMade, enlist, live, refuse_wrapped
from pace.runtime.optimizer.stand_in import StandIn
from pace.runtime.optimizer.start import Prepare, released_on_failure, start_together
from pace.runtime.options import GradientOp
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import SegmentCall
from pace_servers.runtime.link import Countdown
from pace_servers.runtime.options import ParameterServers
from pace_servers.runtime.push_pull import PushPullTransport
from pace_servers.runtime.weight_share import WeightShare


class AsynchronousOptimizer(StandIn):
    """The optimizer that ``pace_servers.runtime.asynchronous`` returns.

    The weights differ from those of synchronous training, except with plain SGD and a staleness of 0. It
    guarantees:

    - No worker computes while it is more than `staleness` steps ahead of the slowest one.
    - The weights are the initial ones plus the sum of all changes. With op="average", each change is divided
      by the number of ranks.

    Buffers, for example of batch normalization, are not exchanged.

    Parameters
    ----------
    staleness
        How many steps a worker may be ahead of the slowest one; None for any number.
    """

    # Whether this process was forked from the one that trains.
    _forked = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        transport: PushPullTransport,
        prepare: Prepare,
        staleness: int | None,
    ) -> None:
        self._closed = True  # until it is complete

        def checked() -> tuple[WrapperOptions, PlanSource]:
            refuse_wrapped(optimizer)
            options, source = prepare()
            if options.communication.compression != "none":
                raise InvalidOptions(
                    f"compression is {options.communication.compression!r}, but weights are sent in their own"
                    " dtype: leave compression out"
                )
            return options, source

        start = start_together(transport, optimizer, model, checked, sums_gradients=False)
        self.optimizer = optimizer
        self.model = model
        warn_of_whole_gradients(model, transport)
        self.parameters_by_name = start.parameters
        self._transport = transport
        self._timeout_s = start.options.timeout_s
        self._divisor = start.options.divisor(transport.size)
        of_tables = set(sparse_tables(model).values())
        tables = {name for name, parameter in start.parameters.items() if parameter in of_tables}
        self._shares = [
            WeightShare(start.plan, number, start.parameters, tables)
            for number in range(len(start.plan.groups))
        ]
        self._failure: CommunicationFailed | None = None
        self._exchanging = False
        self.clock = 0
        calls = [
            SegmentCall(
                name=f"weights.{segment.group}.{segment.offset_bytes}",
                tensor=self._shares[segment.group].part(segment.offset_bytes, segment.size_bytes),
                turn=turn,
                link=segment.link,
            )
            for turn, segment in enumerate(start.plan.segments)
        ]
        self._calls = calls
        self._segments = start.plan.segments
        self._names = {
            call.name: f"{start.plan.groups[segment.group].gradients[0]}/{segment.offset_bytes}"
            for call, segment in zip(calls, start.plan.segments, strict=True)
        }
        self._recorder: StepRecorder | None = None
        self._started_s: float | None = None
        self._pace_bytes_per_s = start.plan.pace_bytes_per_s
        self._staleness = staleness
        self._completed = 0
        self._prepare()
        self._peers = transport.peers
        if self._peers is not None:
            self._peers.follow(self._progress)
        if transport.rank == 0:
            for share in self._shares:
                share.load_weights()
            self._exchange(seed=True)
        transport.gather(b"")  # nobody pushes changes before the weights are there
        for share in self._shares:
            share.remember()
        self._made = WhereMade()
        self._closed = False
        enlist(self)

    def _progress(self) -> dict[str, Any]:
        return {"round": self.clock, "open": self._exchanging, "failed": self._failure is not None}

    @property
    def rank(self) -> int:
        """The rank of this process among those that train together."""
        return self._transport.rank

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step on this rank's gradients, push the change and pull the servers' weights.

        Waits for other ranks only if this rank is too far ahead of the slowest one.

        Raises
        ------
        CommunicationFailed
            If a server or a rank is gone, or the weights did not arrive within the time-out.
        """
        if self._forked:
            raise InvalidUse(FORKED)
        if self._closed:
            raise InvalidUse("the wrapper was closed: step() the torch optimizer itself, or wrap it again")
        if self._failure is not None:
            raise self._failure
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._push_changes()
        return loss

    def _push_changes(self) -> None:
        for share in self._shares:
            share.load_change(self._divisor)
        self.clock += 1
        computed_s = time.perf_counter()
        try:
            self._exchange(seed=False)
        except CommunicationFailed as error:
            self._go_on_without_lost_servers(error)
        self._completed += 1
        back_s = time.perf_counter()
        for share in self._shares:
            share.take_over()
        started_s, self._started_s = self._started_s, time.perf_counter()
        if self._recorder is not None and started_s is not None:
            self._recorder.record(
                compute_s=computed_s - started_s,
                exchange_s=back_s - computed_s,
                apply_s=self._started_s - back_s,
                runs=self._pushed_runs(),
            )

    def _pushed_runs(self) -> list[Runs | None]:
        """Return the elements of each segment that are pushed; None for all."""
        return [self._shares[segment.group].runs_at(segment.offset_bytes) for segment in self._segments]

    def _exchange(self, *, seed: bool) -> None:
        """Send all segments, and wait until they are back."""
        returned = Countdown(len(self._calls))
        self._exchanging = True
        try:
            for call, runs in zip(self._calls, self._pushed_runs(), strict=True):
                if seed:
                    self._transport.seed(call.tensor, call.name, returned.one)
                else:
                    self._transport.allreduce(call.tensor, call.name, returned.one, runs=runs)
            returned.wait(self._timeout_s)
        except CommunicationFailed as error:
            known = "" if self._peers is None else self._peers.explain_failure()
            what = f"{error}{'; ' if known else ''}{known}"
            self._failure = CommunicationFailed(
                f"rank {self._transport.rank} of {self._transport.size}: the exchange of step {self.clock}"
                f" failed: {what}"
            )
            raise self._failure from error
        finally:
            self._exchanging = False

    def _go_on_without_lost_servers(
        self, error: CommunicationFailed, said: Sequence[bytes] | None = None
    ) -> None:
        """Put the newest weights of any rank on the remaining servers, and push again.

        A rank without further changes calls this from ``synchronize``, with the messages of all ranks
        (`said`).
        """
        if self._transport.num_servers < 2 or (self._peers is not None and self._peers.rank_lost):
            raise error
        changes = [share.change(self._divisor) for share in self._shares]
        try:
            self._transport.reopen(said)
            told = [int(each) for each in self._transport.gather(str(self._completed).encode())]
        except CommunicationFailed as again:
            raise again from error
        self._failure = None
        newest = told.index(max(told))
        self._prepare(placed=False, seeder=newest)
        if self._transport.rank == newest:
            for share in self._shares:
                share.load_known()
            self._exchange(seed=True)
        self._transport.gather(b"")
        for share in self._shares:
            share.load_nothing()
        self._exchange(seed=False)
        for share in self._shares:
            share.take_over()
        if self._staleness == 0 and self._completed < max(told):
            return  # a rank with newer weights has waited for this rank's change
        for share, change in zip(self._shares, changes, strict=True):
            share.load(change)
        self._exchange(seed=False)

    def _prepare(self, *, placed: bool = True, seeder: int = 0) -> None:
        calls = self._calls if placed else [replace(call, link=None) for call in self._calls]
        self._transport.prepare(
            calls,
            pace_bytes_per_s=self._pace_bytes_per_s,
            weights=True,
            staleness=self._staleness,
            seeder=seeder,
        )

    def record_steps(self, count: int) -> None:
        """Record the next `count` steps of this rank for ``recorded_steps``; other ranks need not call it.

        Raises
        ------
        InvalidOptions
            If `count` is less than 1, or there are no bytes to exchange.
        """
        segments = [
            ExchangedSegment(
                name=self._names[call.name],
                server=self._transport.server_of(call.name),
                size_bytes=call.tensor.numel() * call.tensor.element_size(),
                item_bytes=call.tensor.element_size(),
            )
            for call in self._calls
        ]
        self._recorder = StepRecorder(segments, servers=self._transport.num_servers, count=count)
        self._started_s = None  # the current step began before the recording

    def recorded_steps(
        self, name: str = "job", *, batch: float = 1.0, bytes_per_s: float | None = None
    ) -> StepsDocument:
        """Return what ``record_steps`` recorded, as ``StepRecorder.document`` does, for ``pace predict``.

        ``pace servers measure`` prints the rate of a host's link, `bytes_per_s`.

        Raises
        ------
        InvalidUse
            If no steps were recorded.
        """
        if self._recorder is None:
            raise InvalidUse("no steps were recorded: call record_steps() before training steps")
        return self._recorder.document(name, batch=batch, bytes_per_s=bytes_per_s)

    def synchronize(self) -> None:
        """Give every rank the newest weights, with all changes of all ranks. Every rank must call it."""
        if self._failure is not None:
            raise self._failure
        while any(said := self._transport.gather(b"")):  # until all changes are on the servers
            self._go_on_without_lost_servers(CommunicationFailed("another rank has lost a server"), said)
        self._started_s = None  # no step of training is recorded
        with torch.no_grad():
            self._push_changes()
        self._started_s = None

    def finish_updates(self) -> None:
        """Do nothing: ``step()`` leaves no update pending."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def close(self) -> None:
        """Leave the training; the other ranks go on. Idempotent.

        A rank whose process or ``with`` block ends by an exception ends the training of all ranks. A rank
        that runs a server stays until the others have left, for at most the time-out, as it holds part of the
        weights.
        """
        self._transport.serve_on_s = self._timeout_s
        self._close(linger=True)

    def _close(self, *, linger: bool, reason: str | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        failed = self._failure is not None
        if self._peers is not None:
            self._peers.close(reason, failed=failed)
        self._transport.close(failed=failed or reason is not None)
        if failed and linger and self._peers is not None:
            self._peers.linger()
        live.discard(self)

    def before_fork(self) -> None:
        """Do nothing: no update is ever pending."""

    def after_fork_in_child(self) -> None:
        """In a forked process: have ``step()`` raise, and close nothing."""
        self._closed = self._forked = True

    def announce_end(self) -> Callable[[], bool]:
        """Return that no other rank needs this wrapper."""
        return bool  # False

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Leave the training when the process ends without ``close``."""
        raised = uncaught is not None and issubclass(uncaught, Exception)
        self._close(linger=raised, reason=uncaught.__name__ if raised and uncaught else None)

    def __enter__(self) -> "AsynchronousOptimizer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        raised = kind is not None and issubclass(kind, Exception)
        self._transport.serve_on_s = 0.0 if raised else self._timeout_s
        self._close(linger=True, reason=kind.__name__ if raised and kind else None)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._made.end(lambda: self._close(linger=False))


def asynchronous(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    staleness: int | None = None,
    op: GradientOp = "average",
    broadcast_parameters: bool = True,
    process_group: dist.ProcessGroup | None = None,
    **training: Unpack[TrainingOptions],
) -> AsynchronousOptimizer:
    """Wrap a torch optimizer for asynchronous training; parameter servers hold the weights.

    The weights differ from those of synchronous training; see ``AsynchronousOptimizer`` for what is
    guaranteed.

    Parameters
    ----------
    staleness
        Number of steps that a rank may be ahead of the slowest one before it waits; None for no limit.
    communication
        ``ParameterServers()`` (default).
    optimizer, model, plan, timeout_s, op, broadcast_parameters, process_group
        The arguments of ``DistributedOptimizer``; there is no `mode`.

    Raises
    ------
    ScheduleMismatch, InvalidOptions, InvalidUse
        In the cases of ``DistributedOptimizer``.
    """
    refuse_unknown_arguments(asynchronous, training)
    over = training.setdefault("communication", ParameterServers())
    transport = (over if isinstance(over, ParameterServers) else ParameterServers()).connect(
        model, training.get("plan"), connecting_timeout_s(training), process_group
    )

    def checked() -> tuple[WrapperOptions, PlanSource]:
        if staleness is not None and (type(staleness) is not int or not 0 <= staleness < 1 << 31):
            raise refusal("staleness", staleness, "a whole number of at least 0, or None,")
        if type(over) is not ParameterServers:
            raise InvalidOptions(
                f"communication is {over!r}, but asynchronous() keeps the weights on parameter servers:"
                " ParameterServers() is needed"
            )
        if "mode" in training:
            raise InvalidOptions("mode says when synchronous updates are applied: leave it out")
        return prepare(transport, training, op=op, broadcast_parameters=broadcast_parameters)

    with released_on_failure(transport):
        return AsynchronousOptimizer(
            optimizer, model, transport=transport, prepare=checked, staleness=staleness
        )
