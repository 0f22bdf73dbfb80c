"""The size of parts that theory suggests for the measured cost of a job's network."""

import math
from collections.abc import Sequence

import torch

from pace.runtime.capture.cost_sampler import CostSampler
from pace.runtime.capture.self_profile import TransportNetwork
from pace.runtime.engine.plan import GradientSize
from pace.runtime.transports.transport import Transport


class NetworkCost:
    """Measures the time that each part loses, and the time of a byte, on a job's own transport."""

    def __init__(
        self, transport: Transport, sizes: Sequence[GradientSize], model: torch.nn.Module, *, timeout_s: float
    ) -> None:
        self._transport = transport
        self._total = sum(gradient.size_bytes for gradient in sizes)
        self._model = model
        self._timeout_s = timeout_s

    def suggested_bytes(self) -> float:
        """Return delta0 in bytes; every rank must call it, with nothing in flight. Takes about two seconds.

        Cutting M bytes into parts of delta bytes loses theta seconds for each of the M / delta parts. And
        whenever a more urgent part becomes ready, it waits for the part in flight. ByteScheduler's bounds on
        the sum are smallest at sqrt(M theta B) for all-reduces, where B is the rate at which an all-reduce
        sums bytes, and at sqrt(M theta B / (2 S)) for S parameter servers, where B is a worker's rate.

        Raises
        ------
        CommunicationFailed
            If a rank or a server is gone.
        """
        exchange = self._transport.measure_exchange(self._total)
        if exchange is not None:
            busy_bytes_per_s = exchange.worker_bytes_per_s / (2 * exchange.servers)
            return math.sqrt(self._total * exchange.partition_s * busy_bytes_per_s)
        device = next(iter(self._model.parameters())).device
        network = TransportNetwork(self._transport, device, timeout_s=self._timeout_s)
        measured = CostSampler(network, largest_bytes=self._total, slices=1).finish().sizes
        theta_s = measured[0].duration_s
        (bytes_before, before_s), (bytes_last, last_s) = (
            (size.size_bytes, size.duration_s) for size in measured[-2:]
        )
        if last_s <= before_s:
            return float(self._total)  # the time of a byte is too short to be measured
        return math.sqrt(self._total * theta_s * (bytes_last - bytes_before) / (last_s - before_s))
