"""Profiles a job that trains with the runtime: its compute, and its network between steps.

All ranks record the same iterations, so that ranks on one machine slow one another down as in training.
Meanwhile training must run with a barrier, and with its communication inside ``aside``.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from pace.documents.collective_costs import AllReduce
from pace.documents.load import Load
from pace.documents.profile import Profile, fingerprint, parse_profile
from pace.errors import CommunicationFailed
from pace.runtime.capture.allreduce_cost import CollectiveName
from pace.runtime.capture.contention import (
    LEAST_PAIRS,
    Contention,
    ContentionMeasurement,
    slowest_of,
)
from pace.runtime.capture.cost_sampler import BUDGET_S, CostSampler
from pace.runtime.capture.recorder import (
    Recorder,
    num_steps,
    scaled,
    slowest_factor,
    spread_of,
    warn_if_inexact,
)
from pace.runtime.engine.plan import GradientSize
from pace.runtime.engine.shard_units import units_of
from pace.runtime.event_log import log
from pace.runtime.transports.device import Clock, clock_of
from pace.runtime.transports.transport import Transport

WARM_UP = 3

# Plain iterations only judge the recorded ones, so one after so many of those is enough.
RECORDED_PER_PLAIN = 4

# Rank 0's own profile is as good as the slowest rank's where it is nearly as long, and need not be sent.
NEARLY = 0.95


class SelfProfile:
    """Records the iterations between calls of ``step``; every rank must make the same calls.

    An error on a rank is reported by ``finish`` and not raised: training goes on without a profile.

    Parameters
    ----------
    model
        The trained model.
    gradients
        The names, sizes and types of the gradients that ranks send.
    transport
        The transport of the gradients. Its cost is measured, including compression and threads.
    iterations
        Number of iterations to record.
    name
        The profile's name.
    timeout_s
        An all-reduce that takes longer, in seconds, has failed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        gradients: Sequence[GradientSize],
        transport: Transport,
        *,
        iterations: int,
        name: str,
        timeout_s: float,
    ) -> None:
        self._gradients = gradients
        self._transport = transport
        self._name = name
        self._network = TransportNetwork(
            transport, next(iter(model.parameters())).device, timeout_s=timeout_s
        )
        self._left = num_steps(iterations=iterations, warmup=WARM_UP, recorded_per_plain=RECORDED_PER_PLAIN)
        # Calls between steps let a device run dry, which its next recorded iteration would show: there all
        # of them are made at the end.
        self._slices = self._left - WARM_UP if self._network.device.type == "cpu" else 1
        # Pushes and pulls are measured at the end, in a second: links need a layout of their own for it.
        self._sampler: CostSampler | None = None
        if transport.num_servers == 0 or transport.sequencing != "keyed":
            self._sampler = CostSampler(
                self._network,
                largest_bytes=sum(gradient.size_bytes for gradient in gradients),
                slices=self._slices,
            )
        # How much traffic slows compute down is measured last, in a few more iterations.
        self._pairs = iterations // RECORDED_PER_PLAIN
        self._beside: ContentionMeasurement | None = None
        self._contention = Contention()
        self._fault = ""
        self._recorder: Recorder | None = None
        try:
            names = {gradient.name for gradient in gradients}
            self._recorder = Recorder(
                model,
                iterations=iterations,
                warmup=WARM_UP,
                gradients=names,
                recorded_per_plain=RECORDED_PER_PLAIN,
                units=units_of(model),
                # Compression sends whole gradients to servers.
                rows=transport.takes_runs or not transport.num_servers,
            )
            self._recorder.begin()
        except Exception as error:  # whatever a model does to its modules must not stop it from training
            self._give_up(error)

    def aside(self) -> AbstractContextManager[None]:
        """Inside, for communication, nothing is recorded."""
        if self._beside is not None:
            return self._beside.aside()
        return nullcontext() if self._recorder is None else self._recorder.aside()

    def step(self) -> bool:
        """End an iteration and measure the network for a short time; return whether there are enough.

        Iterations beside traffic follow those that are recorded, if enough are.

        Every rank must call it with nothing in flight.

        Raises
        ------
        CommunicationFailed
            When a peer is gone.
        """
        if self._beside is not None:
            self._beside.end()
            return self._next_beside()
        self._left -= 1
        self._record(Recorder.end)
        if self._sampler is not None and self._left < self._slices:
            if self._left == self._slices - 1 and self._transport.rank == 0:
                log.debug("pace.measuring_network", expected_s=BUDGET_S, steps=self._slices)
            self._sampler.advance()
        if self._left:
            self._record(Recorder.begin)
            return False
        transport = self._transport
        host_waits = transport.device is not None and not transport.queues_calls
        if self._sampler is None or host_waits or self._pairs < LEAST_PAIRS:
            return True
        self._beside = ContentionMeasurement(self._network, self._sampler.costs, pairs=self._pairs)
        return self._next_beside()

    def _next_beside(self) -> bool:
        assert self._beside is not None
        if self._beside.finished:
            self._contention = self._beside.contention()
            self._beside = None
            return True
        self._beside.begin()
        return False

    def _record(self, what: Callable[[Recorder], None]) -> None:
        if self._recorder is not None:
            try:
                what(self._recorder)
            except Exception as error:  # as above
                self._give_up(error)

    def finish(self) -> tuple[bool, Profile | None]:
        """Finish the measurement of the network and agree on the profile of the rank that computes longest.

        Every rank must call it with nothing in flight.

        Returns
        -------
        bool, Profile or None
            Whether there is a profile, the same on all ranks; and on rank 0 the profile.

        Raises
        ------
        CommunicationFailed
            When a peer is gone.
        """
        cost, metadata = self._measure()
        mine: Profile | None = None
        compute_s: float | None = None
        plain_s: list[float] = []
        ends_s: dict[str, list[float]] = {}
        if self._recorder is not None:
            try:
                mine = self._recorder.profile(
                    self._name,
                    workers=self._transport.size,
                    allreduce=cost,
                    metadata=metadata | {"rank": self._transport.rank},
                )
                self._refuse_misfit(mine)
                compute_s, plain_s = self._recorder.report.profile_s, self._recorder.plain_s
                ends_s = self._recorder.ends_s
            except Exception as error:  # as above
                self._give_up(error)
        own = {"compute_s": compute_s, "plain_s": plain_s, "ends_s": ends_s, "fault": self._fault}
        replies = self._gather(own | {"contention": asdict(self._contention)})
        able = [rank for rank, each in enumerate(replies) if each["compute_s"] is not None]
        if not able:
            if self._transport.rank == 0:
                log.warning("pace.profile_failed", reason=replies[0]["fault"])
            return False, None
        of_rank = max(able, key=lambda rank: (replies[rank]["compute_s"], -rank))
        if 0 in able and replies[0]["compute_s"] >= NEARLY * replies[of_rank]["compute_s"]:
            of_rank = 0
        if of_rank != 0:
            chosen = mine.model_dump_json() if mine is not None and self._transport.rank == of_rank else ""
            mine = parse_profile(self._transport.gather(chosen.encode())[of_rank])
        if mine is None or self._transport.rank != 0:
            return True, None
        warn_if_inexact(mine)
        # All wait for the rank that is slowed down most.
        slowest = slowest_of([Contention(**each["contention"]) for each in replies])
        factor = slowest_factor([replies[rank]["plain_s"] for rank in able], able.index(of_rank))
        load = Load(
            delta=slowest.added_s or None, sigma=spread_of([replies[rank]["ends_s"] for rank in able])
        )
        profile = scaled(mine, factor).replace(compute_slowdown=slowest.compute_slowdown, load=load)
        return True, profile

    def _measure(self) -> tuple[AllReduce, dict[str, Any]]:
        if self._sampler is not None:
            sampled = self._sampler.finish()
            return sampled.document, dict(sampled.metadata)
        exchange = self._transport.measure_exchange(sum(gradient.size_bytes for gradient in self._gradients))
        assert exchange is not None
        return exchange, {}

    def stop(self) -> None:
        """Remove the hooks during an iteration. Idempotent."""
        if self._beside is not None:
            self._beside.stop()
            self._beside = None
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def _give_up(self, error: Exception) -> None:
        self._fault = f"{type(error).__name__}: {error}"
        self.stop()

    def _refuse_misfit(self, profile: Profile) -> None:
        wanted = fingerprint(((g.name, g.size_bytes, g.dtype) for g in self._gradients), profile.workers)
        if profile.fingerprint != wanted:
            missing = {g.name for g in self._gradients} - {g.name for g in profile.gradients}
            raise ValueError(f"the profile lacks {', '.join(sorted(missing)[:5]) or 'gradients'}")

    def _gather(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self._transport.gather(json.dumps(document).encode())]


class TransportNetwork:
    """The engine's transport as the network for ``measure_allreduce``; nothing else may be in flight.

    Parameters
    ----------
    collective
        The collective to measure.
    """

    def __init__(
        self,
        transport: Transport,
        device: torch.device,
        *,
        timeout_s: float,
        collective: CollectiveName = "all-reduce",
    ) -> None:
        self._collective = collective
        self.num_workers = transport.size
        self.device = device
        self._transport = transport
        self._timeout_s = timeout_s
        self.clock: Clock = clock_of(transport.device)

    def start(self, tensor: torch.Tensor, name: str) -> Callable[[], Any]:
        """Begin a collective of `tensor`; return a function that waits for its end; see ``Network``."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def done(error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            ended.set()

        summed: Any = None
        if self._collective == "all-reduce":
            summed = self._transport.allreduce(tensor, name, done)
        else:
            rows = tensor[: tensor.numel() // self.num_workers * self.num_workers].view(self.num_workers, -1)
            halves = {
                "reduce-scatter": self._transport.reduce_scatter,
                "all-gather": self._transport.all_gather,
            }
            summed = halves[self._collective]([rows], name, done)

        def wait() -> Any:
            if not ended.wait(self._timeout_s):
                raise CommunicationFailed(
                    f"rank {self._transport.rank} of {self.num_workers}: measuring the network, a"
                    f" call ({self._collective}) did not end within {self._timeout_s:g} s"
                )
            if errors:
                raise CommunicationFailed(
                    f"rank {self._transport.rank} of {self.num_workers}: measuring the network, a"
                    f" call ({self._collective}) failed: {errors[0]}"
                ) from errors[0]
            return self.clock.now() if summed is None else summed

        return wait

    def barrier(self) -> None:
        """Wait until every rank is here."""
        # None ends before every rank has begun it.
        self.start(torch.zeros(self.num_workers, device=self.device), "measure.barrier")()

    def minimum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the element-wise minimum over all ranks."""
        replies = [json.loads(each) for each in self._transport.gather(json.dumps(values.tolist()).encode())]
        return torch.tensor(replies, dtype=torch.float64, device="cpu").amin(dim=0)
