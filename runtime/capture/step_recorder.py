"""Records what a worker of asynchronous training does in its steps, as a steps document.

A step is its compute, a push of every segment, the pull that answers it, and taking over the weights. What a
server adds takes is part of neither: a document's ``overhead`` can say it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pace.documents.throughput.steps import StepLink, StepsDocument, StepsOp, StepTimes
from pace.errors import InvalidOptions, InvalidUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedSegment:
    """What travels in every step, to a server and back."""

    name: str
    server: int
    size_bytes: int


class StepRecorder:
    """Keeps the times of a number of steps.

    Parameters
    ----------
    count
        How many; later ones are not recorded.
    """

    def __init__(self, segments: Sequence[ExchangedSegment], *, servers: int, count: int) -> None:
        if count < 1:
            raise InvalidOptions(f"{count} steps to record: at least 1 is needed")
        self._segments = segments
        self._servers = servers
        self._count = count
        self._compute_s: list[float] = []
        self._exchange_s: list[float] = []
        self._apply_s: list[float] = []

    @property
    def complete(self) -> bool:
        """Whether as many steps are recorded as were to be."""
        return len(self._compute_s) >= self._count

    def record(self, *, compute_s: float, exchange_s: float, apply_s: float) -> None:
        """Record a step."""
        if not self.complete:
            self._compute_s.append(compute_s)
            self._exchange_s.append(exchange_s)
            self._apply_s.append(apply_s)

    def document(self, name: str, *, batch: float, bytes_per_s: float | None) -> StepsDocument:
        """Return what was recorded; see ``AsynchronousOptimizer.recorded_steps``."""
        if not self._compute_s:
            raise InvalidUse("no step was recorded yet")
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
        total = sum(segment.size_bytes for segment in self._segments)
        return StepsDocument(
            name=name,
            batch=batch,
            servers=self._servers,
            ops=tuple(ops),
            steps=steps,
            link=StepLink(bytes_per_s=bytes_per_s or total / min(self._exchange_s)),
            metadata={
                "exchange_s": self._exchange_s,
                "bytes_per_s_from": "given" if bytes_per_s else "the fastest recorded exchange",
            },
        )
