"""Records what a worker of asynchronous training does in its steps, as a steps document.

A step is its compute, a push of every segment, the pull that answers it, and taking over the weights. What a
server adds takes is part of neither: a document's ``overhead`` can say it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from pace.documents.push_pull import KEY_BYTES, sparse_bytes
from pace.documents.steps import StepLink, StepsDocument, StepsOp, StepTimes, TouchedBytes
from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.capture.touched_rows import mean_unions
from pace.runtime.transports.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedSegment:
    """What travels in every step, to a server and back: all of it, or runs of elements of `item_bytes`."""

    name: str
    server: int = 0
    size_bytes: int
    item_bytes: int = 4


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
            raise InvalidOptions(
                "the segments have no bytes: give those that the worker exchanges with servers"
            )
        self._segments = segments
        self._servers = 1 + max(segment.server for segment in segments) if servers is None else servers
        self._count = count
        self._compute_s: list[float] = []
        self._exchange_s: list[float] = []
        self._apply_s: list[float] = []
        # For each step and segment, what was pushed; None for all.
        self._runs: list[Sequence[Runs | None]] = []
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

    def record(
        self,
        *,
        compute_s: float,
        exchange_s: float,
        apply_s: float,
        runs: Sequence[Runs | None] | None = None,
    ) -> None:
        """Record a step: seconds of its compute, of pushes and pulls, and of taking over the weights.

        Parameters
        ----------
        runs
            For each segment, the elements that were pushed, or None for all (default: all of every segment).
        """
        if not self.complete:
            self._runs.append(runs or [None] * len(self._segments))
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
        sizes = [self._sizes(number) for number in range(len(self._segments))]
        for segment, (pushed, pulled) in zip(self._segments, sizes, strict=True):
            ops.append(
                StepsOp(
                    name=f"push/{segment.name}",
                    resource="uplink",
                    server=segment.server,
                    deps=("compute",),
                    **pushed,
                )
            )
            ops.append(
                StepsOp(
                    name=f"pull/{segment.name}",
                    resource="downlink",
                    server=segment.server,
                    deps=(f"push/{segment.name}",),
                    **pulled,
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
                **self._spread(),
            },
        )

    def _sizes(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields of the sizes of a segment's push and pull.

        Workers touch rows as the recorded steps of this worker do: what several workers touch in a step is
        what as many of its steps touch.
        """
        segment = self._segments[number]
        found = [runs for each in self._runs if (runs := each[number]) is not None]
        pushed = {"size_bytes": round(float(np.mean(self._pushed(number))))}
        if len(found) < len(self._runs):  # some whole pushes: pulls are whole, or nearly so
            return pushed, {"size_bytes": segment.size_bytes}
        unions = mean_unions(
            [runs.starts for runs in found],
            [(runs.lengths * segment.item_bytes + KEY_BYTES).astype(np.float64) for runs in found],
        )
        by_workers = [sparse_bytes(each, segment.size_bytes) for each in unions.tolist()]
        touched = TouchedBytes(by_workers=tuple(by_workers), whole_bytes=segment.size_bytes)
        return pushed, {"size_bytes": touched.of(1), "touched": touched}

    def _pushed(self, number: int) -> list[float]:
        """Return the bytes of a segment that were pushed in each step."""
        segment = self._segments[number]
        return [
            float(segment.size_bytes)
            if runs is None
            else sparse_bytes(
                runs.num_elements * segment.item_bytes + KEY_BYTES * len(runs.starts), segment.size_bytes
            )
            for runs in (each[number] for each in self._runs)
        ]

    def _spread(self) -> dict[str, Any]:
        """Return the mean and the standard deviation of a step's pushed bytes, if rows were pushed."""
        if all(runs is None for each in self._runs for runs in each):
            return {}
        totals = np.sum([self._pushed(number) for number in range(len(self._segments))], axis=0)
        return {"pushed_bytes": {"mean": float(totals.mean()), "std": float(totals.std())}}

    def _serial_bytes(self) -> float:
        """Return the bytes that a full-duplex link carries one after the other: pushes, and the last pull."""
        pushed = [float(np.mean(self._pushed(number))) for number in range(len(self._segments))]
        return sum(pushed) + pushed[-1]
