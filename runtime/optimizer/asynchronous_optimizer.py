"""The wrapper for training in which workers do not wait for all others: weights live on parameter servers.

Every ``step()`` is the user's own optimizer's, on this rank's gradients alone. Then what it changed is
pushed, the servers add it to the weights that all ranks share, and what comes back are the model's weights.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.engine.plan import Plan
from pace.runtime.optimizer.live_wrappers import live, refuse_wrapped
from pace.runtime.optimizer.stand_in import StandIn
from pace.runtime.optimizer.start import Prepare, start_together
from pace.runtime.parameter_server.transport import PushPullTransport
from pace.runtime.transports.transport import SegmentCall


class AsynchronousOptimizer(StandIn):
    """See ``pace.runtime.torch.DistributedOptimizer`` with ``consistency="async"`` or ``Stale(k)``.

    Weights are not those of synchronous training, except for plain SGD under ``Stale(0)``. What holds:

    - Under ``Stale(k)`` no worker computes while it is more than k steps ahead of the slowest.
    - The weights are the first ones plus the sum of all changes, each divided by the number of ranks with
      op="average".

    Buffers, those of batch normalization for example, stay each rank's own.

    Parameters
    ----------
    staleness
        How many steps a worker may be ahead of the slowest; None for any number.
    """

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
            _refuse_others(options)
            return options, source

        start = start_together(transport, optimizer, model, checked)
        self.optimizer = optimizer
        self.model = model
        self.parameters_by_name = start.parameters
        self._transport = transport
        self._timeout_s = start.options.timeout_s
        self._divisor = start.options.divisor(transport.size)
        self._shares = [
            _Share(start.plan, number, start.parameters) for number in range(len(start.plan.groups))
        ]
        self._failure: CommunicationFailed | None = None
        self._exchanging = False
        self.clock = 0
        calls = [
            SegmentCall(
                name=f"weights.{segment.group}.{segment.offset_bytes}",
                tensor=self._shares[segment.group].part(segment.offset_bytes, segment.size_bytes),
                turn=turn,
            )
            for turn, segment in enumerate(start.plan.segments)
        ]
        self._calls = calls
        transport.prepare(calls, weights=True, staleness=staleness)
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
        self._closed = False
        live.add(self)

    def _progress(self) -> dict[str, Any]:
        return {"round": self.clock, "open": self._exchanging, "failed": self._failure is not None}

    @property
    def rank(self) -> int:
        """The rank of this process among those that train together."""
        return self._transport.rank

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step on this rank's gradients, push the change and take over the servers' weights.

        Waits for other ranks only as far as the bound on staleness demands.

        Raises
        ------
        CommunicationFailed
            When a server or a rank is gone, or the weights did not come within the time-out.
        """
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
        self._exchange(seed=False)
        for share in self._shares:
            share.take_over()

    def _exchange(self, *, seed: bool) -> None:
        """Send all segments, and wait until they are back."""
        returned = _Returned(len(self._calls))
        self._exchanging = True
        try:
            for call in self._calls:
                if seed:
                    self._transport.seed(call.tensor, call.name, returned.one)
                else:
                    self._transport.allreduce(call.tensor, call.name, returned.one)
            returned.wait(self._timeout_s)
        except (CommunicationFailed, TimeoutError) as error:
            known = "" if self._peers is None else self._peers.explain_failure()
            what = f"{error}{'; ' if known else ''}{known}"
            self._failure = CommunicationFailed(
                f"rank {self._transport.rank} of {self._transport.size}: the exchange of step {self.clock}"
                f" failed: {what}"
            )
            raise self._failure from error
        finally:
            self._exchanging = False

    def synchronize(self) -> None:
        """Give every rank the same weights: the newest, with all changes; every rank must call it."""
        if self._failure is not None:
            raise self._failure
        self._transport.gather(b"")  # all changes are on the servers
        with torch.no_grad():
            self._push_changes()

    def finish_updates(self) -> None:
        """Nothing is ever pending: ``step()`` applies its own update."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def close(self) -> None:
        """Leave the training; the others go on without this rank. Idempotent.

        A rank that runs a server itself stays, for at most the time-out, until the others have left too: part
        of their weights is there.
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
        self._transport.close(failed=failed)
        if failed and linger and self._peers is not None:
            self._peers.linger()
        live.discard(self)

    def end_with_process(self, uncaught: type[BaseException] | None) -> None:
        """Leave, as the process ends without ``close``."""
        self._close(linger=False, reason=uncaught.__name__ if uncaught else None)

    def __enter__(self) -> "AsynchronousOptimizer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        self._transport.serve_on_s = self._timeout_s if kind is None else 0.0
        self._close(linger=True, reason=None if kind is None else kind.__name__)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._close(linger=False)


class _Share:
    """A group's parameters, flat: what is sent, and what the servers' weights were when they came last."""

    def __init__(self, plan: Plan, number: int, parameters: dict[str, nn.Parameter]) -> None:
        group = plan.groups[number]
        self._parameters = [parameters[name] for name in group.gradients]
        total = sum(parameter.numel() for parameter in self._parameters)
        self._buffer = torch.zeros(total, dtype=self._parameters[0].dtype)
        self._known = torch.zeros_like(self._buffer)
        sizes = [parameter.numel() for parameter in self._parameters]
        flats = torch.split(self._buffer, sizes)
        self._views = [
            flat.view(parameter.shape) for flat, parameter in zip(flats, self._parameters, strict=True)
        ]

    def part(self, offset_bytes: int, size_bytes: int) -> torch.Tensor:
        """Return the part of the buffer that a segment sends."""
        element = self._buffer.element_size()
        return self._buffer[offset_bytes // element : (offset_bytes + size_bytes) // element]

    @torch.no_grad()
    def load_weights(self) -> None:
        """Fill the buffer with the parameters."""
        for view, parameter in zip(self._views, self._parameters, strict=True):
            view.copy_(parameter)

    def remember(self) -> None:
        """Take the parameters as they are for the servers'."""
        self.load_weights()
        self._known.copy_(self._buffer)

    def load_change(self, divisor: float) -> None:
        """Fill the buffer with what has changed since the servers' weights came last."""
        self.load_weights()
        self._buffer.sub_(self._known)
        if divisor != 1:
            self._buffer.div_(divisor)

    @torch.no_grad()
    def take_over(self) -> None:
        """Make the buffer's weights the model's."""
        self._known.copy_(self._buffer)
        for view, parameter in zip(self._views, self._parameters, strict=True):
            parameter.copy_(view)


class _Returned:
    """Counts what has come back."""

    def __init__(self, num_segments: int) -> None:
        self._left = num_segments
        self._error: BaseException | None = None
        self._wake = threading.Condition()

    def one(self, error: BaseException | None) -> None:
        with self._wake:
            self._left -= 1
            self._error = self._error or error
            self._wake.notify_all()

    def wait(self, timeout_s: float) -> None:
        with self._wake:
            start = time.monotonic()
            self._wake.wait_for(lambda: self._left <= 0 or self._error is not None, timeout_s)
            if isinstance(self._error, CommunicationFailed):
                raise self._error
            if self._error is not None:
                raise CommunicationFailed(str(self._error)) from self._error
            if self._left > 0:
                raise TimeoutError(f"weights did not come within {time.monotonic() - start:.3g} s")


def _refuse_others(options: WrapperOptions) -> None:
    if options.backward_passes_per_step != 1:
        raise InvalidOptions(
            "backward_passes_per_step is for synchronous training: without it, call step() after as many"
            " backward passes as you like"
        )
    if options.compression != "none":
        raise InvalidOptions(
            f"compression is {options.compression!r}; weights travel in their own dtype: leave it out"
        )
