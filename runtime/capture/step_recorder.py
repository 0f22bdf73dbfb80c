"""Records what a worker of asynchronous training does in its steps, as a steps document.

A step is its compute, a push of every segment, the pull that answers it, and taking over the weights. What a
server adds takes is part of neither: a document's ``overhead`` can say it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from pace.documents.throughput.steps import StepLink, StepsDocument, StepsOp, StepTimes
from pace.errors import InvalidOptions, InvalidUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedSegment:
    """What travels in every step, to a server and back."""

    name: str
    server: int = 0
    size_bytes: int


class StepRecorder:
    """Keeps the times of a number of steps, of any worker that pushes changes and pulls weights.

    A training loop of your own calls ``received`` and ``computed`` in every step. Its other work, such as
    sending, stays as it is. PACE's asynchronous optimizer calls ``record``.

    Parameters
    ----------
    segments
        What is pushed and pulled in every step, in this order. A number of bytes stands for the whole model
        in one message, to one server.
    servers
        Number of servers (default: as many as segments name).
    count
        Number of steps to record; later ones are not recorded.

    Raises
    ------
    InvalidOptions
        If nothing is exchanged, or `count` is less than 1.
    """

    def __init__(
        self,
        segments: Sequence[ExchangedSegment] | SupportsIndex,
        *,
        servers: int | None = None,
        count: int = 50,
    ) -> None:
        if count < 1:
            raise InvalidOptions(f"{count} steps to record: at least 1 is needed")
        if isinstance(segments, SupportsIndex):  # NumPy's whole numbers are no int
            segments = [ExchangedSegment(name="model", size_bytes=segments.__index__())]
        if sum(segment.size_bytes for segment in segments) <= 0:
            raise InvalidOptions("a worker that exchanges no bytes with servers is not theirs: give segments")
        self._segments = segments
        self._servers = 1 + max(segment.server for segment in segments) if servers is None else servers
        self._count = count
        self._compute_s: list[float] = []
        self._exchange_s: list[float] = []
        self._apply_s: list[float] = []
        self._received_s: float | None = None
        self._computed_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether as many steps are recorded as were to be."""
        return len(self._compute_s) >= self._count

    def received(self) -> None:
        """Say that new weights have come, and compute begins. This ends the step before.

        Raises
        ------
        InvalidUse
            If it is called again before ``computed``.
        """
        now = time.perf_counter()
        if self._received_s is not None:
            if self._computed_s is None:
                raise InvalidUse(
                    "received() twice: call computed() in between, as gradients are ready to send"
                )
            self.record(
                compute_s=self._computed_s - self._received_s, exchange_s=now - self._computed_s, apply_s=0.0
            )
        self._received_s, self._computed_s = now, None

    def computed(self) -> None:
        """Say that compute has ended, and gradients or changes are ready to be sent.

        Raises
        ------
        InvalidUse
            If ``received`` was not called before it in this step.
        """
        if self._received_s is None or self._computed_s is not None:
            raise InvalidUse("computed() without received(): call received() when new weights have come")
        self._computed_s = time.perf_counter()

    def record(self, *, compute_s: float, exchange_s: float, apply_s: float) -> None:
        """Record a step: seconds of its compute, of pushes and pulls, and of taking over the weights."""
        if not self.complete:
            self._compute_s.append(compute_s)
            self._exchange_s.append(exchange_s)
            self._apply_s.append(apply_s)

    def document(
        self, name: str = "job", *, batch: float = 1.0, bytes_per_s: float | None = None
    ) -> StepsDocument:
        """Return what was recorded, for ``pace predict``.

        Parameters
        ----------
        name
            Name of the job in the document.
        batch
            Number of examples in a step of this worker.
        bytes_per_s
            Rate of a host's link in bytes/s (default: that of the fastest recorded exchange, which is too low
            if other workers used the link too, or if the server computes for long).

        Raises
        ------
        InvalidUse
            If no steps were recorded, or an exchange took no time from which a rate could follow.
        """
        if not self._compute_s:
            raise InvalidUse("no step was recorded yet")
        if bytes_per_s is None and min(self._exchange_s) <= 0:
            raise InvalidUse("an exchange took no time, so the link's rate is not known: give bytes_per_s")
        ops = [StepsOp(name="compute", resource="worker", stream="compute")]
        for segment in self._segments:
            transfer = {"server": segment.server, "size_bytes": segment.size_bytes}
            ops.append(StepsOp(name=f"push/{segment.name}", resource="uplink", deps=("compute",), **transfer))
            ops.append(
                StepsOp(
                    name=f"pull/{segment.name}",
                    resource="downlink",
                    deps=(f"push/{segment.name}",),
                    **transfer,
                )
            )
        pulls = tuple(f"pull/{segment.name}" for segment in self._segments)
        ops.append(StepsOp(name="apply", resource="worker", stream="compute", deps=pulls))
        steps = tuple(
            StepTimes(duration_s=(compute_s, *([0.0] * (2 * len(self._segments))), apply_s))
            for compute_s, apply_s in zip(self._compute_s, self._apply_s, strict=True)
        )
        return StepsDocument(
            name=name,
            batch=batch,
            servers=self._servers,
            ops=tuple(ops),
            steps=steps,
            link=StepLink(bytes_per_s=bytes_per_s or self._serial_bytes() / min(self._exchange_s)),
            metadata={
                "exchange_s": self._exchange_s,
                "bytes_per_s_from": "given" if bytes_per_s else "the fastest recorded exchange",
            },
        )

    def _serial_bytes(self) -> int:
        """Return the bytes that a full-duplex link carries one after the other: pushes, and the last pull."""
        return sum(segment.size_bytes for segment in self._segments) + self._segments[-1].size_bytes
