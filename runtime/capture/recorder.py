"""Records a training loop's iterations and converts them to a profile.

The callers provide the iterations: ``profiler`` those of a loop without communication, ``self_profile`` those
of a job that trains with the runtime.

What marks cost a loop whose device waits for its host is taken out of the ops. The host queues kernels and
marks. While the device is behind, a mark costs it nothing. Where the device has caught up and waits for the
host, every mark since it last waited makes that wait longer: together by 30 to 50 % of an iteration of
bfloat16 on an H100. Plain iterations, recorded between those with marks, say by how much all marks make an
iteration longer. All marks count as equally long, and what they cost is taken from the intervals in which the
device was waiting.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pace.documents.collective_costs import AllReduce, HalfCost
from pace.documents.load import Load
from pace.documents.profile import DType, Gradient, Profile
from pace.errors import InvalidOptions, InvalidProfile
from pace.runtime.capture.touched_rows import TableBytesWatch, TouchedRowsWatch, sparse_tables
from pace.runtime.capture.trace import Trace, Tracer
from pace.runtime.capture.update_rule import UpdateRuleWatch
from pace.runtime.capture.window import CapturedWindow, Granularity, lay_out, middle_half
from pace.runtime.engine.buffers import num_bytes
from pace.runtime.engine.shard_units import Unit
from pace.runtime.event_log import log
from pace.runtime.transports.device import clock_for
from pace.version import __version__

# Number of backward ops whose end times ranks compare.
COMPARED_OPS = 8

# Warn if a profile's compute time differs from that of plain iterations by more than this share.
INEXACT = 0.1

Array = npt.NDArray[np.float64]

MOST_S = 60e-6
"""The most that a mark may cost: its hook takes 3 to 15 us, and calling the hook as long again or more."""
MOST_SHARE = 0.5
"""Of an interval: the rest is taken for its kernels."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """How exact a captured profile is.

    Attributes
    ----------
    profile_s
        The profile's compute time, the sum of its ops' durations, in seconds.
    plain_iteration_s
        Mean time of the iterations without hooks, between captured ones, over the middle half by time.
    captured_iteration_s
        The same for iterations with hooks, including time outside of ops.
    num_iterations
        Number of captured iterations from which the durations come.
    num_dropped
        Number of captured iterations that did other work than the first one and were left out.
    """

    profile_s: float
    plain_iteration_s: float
    captured_iteration_s: float
    num_iterations: int
    num_dropped: int

    @property
    def error(self) -> float:
        """The relative error of the profile's compute time: 0.02 is 2 % longer than a plain iteration."""
        return self.profile_s / self.plain_iteration_s - 1

    @property
    def overhead(self) -> float:
        """By what share capturing lengthens an iteration: 0.05 is 5 %."""
        return self.captured_iteration_s / self.plain_iteration_s - 1

    def __str__(self) -> str:
        dropped = f", {self.num_dropped} dropped" if self.num_dropped else ""
        return (
            f"plain iteration {self.plain_iteration_s * 1e3:.2f} ms, profile {self.profile_s * 1e3:.2f} ms "
            f"({self.error:+z.1%}); capturing costs {self.overhead:+z.1%}; "
            f"{self.num_iterations} iterations captured{dropped}"
        )


def num_steps(*, iterations: int, warmup: int, recorded_per_plain: int = 1) -> int:
    """Return how many iterations a recorder needs in total: recorded, warm-up, trace and plain ones."""
    return warmup + 1 + iterations + math.ceil(iterations / recorded_per_plain)


class Recorder:
    """Records iterations with hooks, which give the ops' durations, and plain iterations between them.

    Parameters
    ----------
    model
        The model, on the CPU or on one CUDA device.
    iterations
        Number of iterations to record.
    warmup
        Number of iterations before the first recorded one.
    granularity
        See ``Capture``.
    gradients
        Names of the parameters whose gradients are sent (default: all that require a gradient).
    recorded_per_plain
        Number of recorded iterations for each plain one.
    units
        The units of a ``fully_shard`` model, whose gradients are those of a shard.
    rows
        Whether to count the rows that sparse gradients of embeddings have.

    Raises
    ------
    InvalidOptions
        If the model is compiled, sharded or on several devices.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        iterations: int,
        warmup: int,
        granularity: Granularity = "module",
        gradients: Collection[str] | None = None,
        recorded_per_plain: int = 1,
        units: Sequence[Unit] = (),
        rows: bool = True,
    ) -> None:
        if iterations < 1 or warmup < 1:
            raise InvalidOptions(f"iterations={iterations} and warmup={warmup}: each must be at least 1")
        if any(hasattr(module, "_orig_mod") for module in model.modules()):
            raise InvalidOptions(
                "the model is compiled, and hooks would break its graphs apart: capture it before "
                "torch.compile"
            )
        if not units and any(hasattr(parameter, "placements") for parameter in model.parameters()):
            raise InvalidOptions("the model's parameters are sharded: capture is for whole models")
        self._model = model
        self._granularity: Granularity = granularity
        self._gradients = gradients
        self._clock = clock_for(model)
        self._tracer = Tracer(model, self._clock, operators=granularity == "operator", units=units)
        self._num_warmup = warmup
        self._num_steps = num_steps(
            iterations=iterations, warmup=warmup, recorded_per_plain=recorded_per_plain
        )
        self._recorded_per_plain = recorded_per_plain
        self._iteration = 0
        self._watch = UpdateRuleWatch(
            parameter
            for parameter_name, parameter in model.named_parameters()
            if (parameter.requires_grad if gradients is None else parameter_name in gradients)
        )
        self._tables = TableBytesWatch(model)
        tables = set(sparse_tables(model).values()) if rows and not units else set()
        self._rows = TouchedRowsWatch(
            (parameter_name, parameter)
            for parameter_name, parameter in model.named_parameters()
            if parameter in tables and parameter.requires_grad
        )
        self._tracing = False
        self._traces: list[Trace] = []
        # Stamps of plain iterations: the start, the start and end of what was set aside, the end.
        self._plain: list[list[Any]] = []
        self._stamps: list[Any] = []
        self.window: CapturedWindow | None = None

    @property
    def finished(self) -> bool:
        """Whether all iterations have been recorded."""
        return self._iteration >= self._num_steps

    def begin(self) -> None:
        """Begin an iteration."""
        self._rows.begin()
        # Warm-up, one full trace, then captured iterations with plain ones in between, so that both see
        # the same machine: a clock rate or a neighbor that changes slowly disturbs both alike.
        number = self._iteration - self._num_warmup
        last = self._iteration == self._num_steps - 1
        plain = last or number % (self._recorded_per_plain + 1) == 0
        if number == 0 or (number > 0 and not plain):
            self._tracer.start(None if self.window is None else self.window.nodes_to_mark)
            self._tracing = True
        else:
            self._stamps = [self._clock.now()]
        # The last iteration before any counts: watching takes time.
        if number == -1:
            self._watch.begin()
        if number < 0:
            self._tables.begin()

    def end(self) -> None:
        """End an iteration."""
        self._watch.end()
        self._rows.end()
        self._tables.end()
        self._iteration += 1
        if not self._tracing:
            self._stamps.append(self._clock.now())
            if self._iteration - 1 > self._num_warmup:
                self._plain.append(self._stamps)
            return
        self._tracing = False
        trace = self._tracer.stop()
        if self._gradients is not None:
            trace.ready = {name: at for name, at in trace.ready.items() if name in self._gradients}
        if self.window is None:
            self.window = lay_out(trace, self._model, self._granularity)
            self._clock.reserve(self._num_steps * (len(self.window.places) + 1))
        else:
            self._traces.append(trace)

    def stop(self) -> None:
        """Remove the hooks during an iteration. Idempotent."""
        self._watch.end()
        self._rows.end()
        self._tables.end()
        if self._tracing:
            self._tracer.stop()
            self._tracing = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time inside from ops and from plain iterations."""
        if self._tracing:
            with self._tracer.aside():
                yield
            return
        self._stamps.append(self._clock.now())
        try:
            yield
        finally:
            self._stamps.append(self._clock.now())

    @property
    def report(self) -> CaptureReport:
        """Return the profile's compute time compared with plain iterations, and the overhead of capturing."""
        window, intervals_s, with_marks_s = self._measurement()
        ops = window.measured(intervals_s)
        return CaptureReport(
            profile_s=sum(op.duration_s for op in ops),
            plain_iteration_s=self._plain_iteration_s(),
            captured_iteration_s=_typical(with_marks_s.sum(axis=1)),
            num_iterations=len(intervals_s),
            num_dropped=len(self._traces) - len(intervals_s),
        )

    def profile(
        self,
        name: str,
        *,
        workers: int,
        allreduce: AllReduce,
        reduce_scatter: HalfCost | None = None,
        all_gather: HalfCost | None = None,
        compute_slowdown: float = 1.0,
        load: Load | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Profile:
        """Build the profile; see ``Capture.profile``."""
        window, intervals_s, _ = self._measurement()
        ops = window.measured(intervals_s)
        report = self.report
        parameters = dict(self._model.named_parameters())
        touched = self._rows.found()
        last_backward = [op.name for op in ops if op.name.startswith("bwd/")]
        # All-reduce carries a parameter that got no gradient as well: that it gets none is known last.
        producers = window.producers | dict.fromkeys(
            self._unused(window), last_backward[-1] if last_backward else ""
        )
        return Profile(
            name=name,
            workers=workers,
            ops=tuple(ops),
            gradients=tuple(
                Gradient(
                    name=gradient,
                    size_bytes=num_bytes(parameters[gradient]),
                    dtype=_dtype(gradient, parameters[gradient]),
                    producer=producer,
                    touched=touched.get(gradient),
                )
                for gradient, producer in producers.items()
                if producer
            ),
            allreduce=allreduce,
            reduce_scatter=reduce_scatter,
            all_gather=all_gather,
            compute_slowdown=compute_slowdown,
            load=load,
            update=self._watch.rule,
            metadata={
                "source": "measured",
                "captured_by": f"pace {__version__}, torch {torch.__version__}",
                "device": _device_name(self._model),
                "granularity": self._granularity,
                "iterations": report.num_iterations,
                "plain_iteration_s": report.plain_iteration_s,
                "capture_error": report.error,
                "capture_overhead": report.overhead,
                "unused_parameters": list(self._unused(window)),
                **({"tables_left_out": tables} if (tables := self._tables.found()) else {}),
                **(metadata or {}),
            },
        )

    def _measurement(self) -> tuple[CapturedWindow, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the window, its intervals without what marks cost, and the intervals as they were."""
        if not self.finished or self.window is None:
            raise InvalidProfile(f"capture ended after {self._iteration} of {self._num_steps} iterations")
        like = [trace for trace in self._traces if tuple(trace.places) == self.window.places]
        if 2 * len(like) < len(self._traces):
            raise InvalidProfile(
                f"{len(self._traces) - len(like)} of {len(self._traces)} iterations did other work than the "
                "first one: a profile needs iterations that are alike"
            )
        stamps = [self._clock.seconds([mark.stamp for mark in trace.marks]) for trace in like]
        intervals_s = np.diff(np.array(stamps), axis=1)
        intervals_s[:, [place.kind == "aside" for place in self.window.places]] = 0.0
        if not self._clock.runs_behind:
            return self.window, intervals_s, intervals_s
        in_ops = np.array([place.kind not in ("aside", "capture") for place in self.window.places])
        typical = middle_half(intervals_s[:, in_ops].sum(axis=1))
        excess_s = intervals_s[typical][:, in_ops].sum(axis=1).mean() - self._plain_iteration_s()
        times = MarkTimes(
            reached_s=np.array(stamps),
            queued_s=1e-9 * np.array([[mark.queued_ns for mark in trace.marks] for trace in like]),
        )
        return self.window, without_marks(intervals_s, times, excess_s, in_ops, typical), intervals_s

    @property
    def plain_s(self) -> list[float]:
        """Seconds of each iteration without hooks."""
        return [self._without_asides(stamps) for stamps in self._plain]

    @property
    def ends_s(self) -> dict[str, list[float]]:
        """Seconds from the start of each recorded iteration to the ends of some ops of its backward pass.

        Empty if an iteration was left out, because the ranks' iterations could not be matched.
        """
        window, intervals_s, _ = self._measurement()
        if len(intervals_s) < len(self._traces):
            return {}
        ends_s = np.cumsum(intervals_s, axis=1).round(6)
        backward = [op for op in window.ops if op.name.startswith("bwd/")]
        chosen = np.unique(np.linspace(0, len(backward) - 1, COMPARED_OPS).astype(int)) if backward else ()
        return {backward[at].name: ends_s[:, max(backward[at].intervals)].tolist() for at in chosen}

    def _plain_iteration_s(self) -> float:
        return _typical(np.array(self.plain_s))

    def _unused(self, window: CapturedWindow) -> list[str]:
        return [name for name in window.unused if self._gradients is None or name in self._gradients]

    def _without_asides(self, stamps: list[Any]) -> float:
        seconds = self._clock.seconds(stamps)
        # Pairs: from an end to the next start.
        return sum(end - start for start, end in zip(seconds[::2], seconds[1::2], strict=True))


def warn_if_inexact(profile: Profile) -> None:
    """Log a warning if compute time differs much from plain iterations, and one of tables on servers."""
    found = profile.metadata
    if "tables_left_out" in found:
        log.warning("pace.tables_left_out", profile=profile.name, modules=list(found["tables_left_out"])[:5])
    if abs(found["capture_error"]) > INEXACT:
        log.warning(
            "pace.capture_inexact",
            profile=profile.name,
            error=found["capture_error"],
            plain_iteration_s=found["plain_iteration_s"],
            overhead=found["capture_overhead"],
            consequence="predictions may be as wrong: profile while the machine does nothing else",
        )


def slowest_factor(of_ranks: Sequence[Sequence[float]], rank: int) -> float:
    """Return how many times as long iterations take as on one rank, as all wait for the slowest in each.

    Parameters
    ----------
    of_ranks
        For each rank, the seconds of the same iterations.
    """
    together_s = np.max(np.array(of_ranks), axis=0)
    return max(float(np.median(together_s) / np.median(of_ranks[rank])), 1.0)


def spread_of(of_ranks: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float] | None:
    """Return a profile's `load.sigma` from each rank's ``Recorder.ends_s``; None if they cannot be compared.

    Variances over ranks are averaged over iterations, which all ranks begin together.
    """
    first = of_ranks[0]
    if len(of_ranks) < 2 or not first or any(list(each) != list(first) for each in of_ranks):
        return None
    found = {}
    for name in first:
        ends_s = np.array([each[name] for each in of_ranks])
        found[name] = float(np.sqrt(ends_s.var(axis=0, ddof=1).mean()))
    return found


def scaled(profile: Profile, factor: float) -> Profile:
    """Return the profile with all durations multiplied, as its metadata then say."""
    ops = [
        op.model_copy(
            update={"duration_s": op.duration_s * factor, "duration_std_s": op.duration_std_s * factor}
        )
        for op in profile.ops
    ]
    return profile.replace(ops=tuple(ops), metadata={**profile.metadata, "scaled_by": factor})


def _typical(totals_s: npt.NDArray[np.float64]) -> float:
    return float(totals_s[middle_half(totals_s)].mean())


def _dtype(name: str, parameter: torch.nn.Parameter) -> DType:
    dtype = str(parameter.dtype).removeprefix("torch.")
    known = {"float64", "float32", "float16", "bfloat16"}
    if dtype not in known:
        raise InvalidProfile(
            f'gradient "{name}" has dtype {dtype}; expected one of {", ".join(sorted(known))}'
        )
    return dtype  # type: ignore[return-value]  # mypy does not narrow a str by a set of literals


def _device_name(model: torch.nn.Module) -> str:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkTimes:
    """When marks were queued and reached; arrays of shape (num_iterations, num_marks), in seconds.

    Attributes
    ----------
    reached_s
        When the device reached the marks, on its clock.
    queued_s
        When the host had queued them, on its clock.
    """

    reached_s: Array
    queued_s: Array

    def device_waits(self) -> npt.NDArray[np.bool_]:
        """Return for each interval whether the device caught up with the host in it.

        It did if it reached the interval's first mark, and so was done with all earlier work, before the host
        had queued the next mark. The clocks have different zeros: in every iteration the shortest time from
        queueing to reaching is taken as none, as an iteration that marks make longer has such a mark.
        """
        behind_s = self.reached_s - self.queued_s
        behind_s = behind_s - behind_s.min(axis=1, keepdims=True)
        return np.asarray(behind_s[:, :-1] < np.diff(self.queued_s, axis=1))


def without_marks(
    intervals_s: Array,
    times: MarkTimes,
    excess_s: float,
    in_ops: npt.NDArray[np.bool_],
    typical: npt.NDArray[np.intp],
) -> Array:
    """Return the intervals shorter by what their marks cost.

    Parameters
    ----------
    intervals_s : array of shape (num_iterations, num_intervals)
    excess_s
        By how much marks make a typical iteration longer. At most this is taken away from an iteration on
        average; less if a mark would have to cost more than `MOST_S`.
    in_ops : array of shape (num_intervals,)
        The intervals that belong to ops.
    typical
        The iterations over which the average is taken.
    """
    waits = times.device_waits()
    if excess_s <= 0 or not (waits & in_ops).any():
        return intervals_s
    most_s = MOST_SHARE * intervals_s

    def taken(cost_s: float) -> Array:
        found = np.zeros_like(intervals_s)
        lead_s = np.zeros(len(intervals_s))  # that marks have cost the host since the device last waited
        for number in range(intervals_s.shape[1]):
            lead_s += cost_s
            found[:, number] = np.where(waits[:, number], np.minimum(lead_s, most_s[:, number]), 0.0)
            lead_s -= found[:, number]
        return np.where(in_ops, found, 0.0)

    low_s, high_s = 0.0, MOST_S
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if taken(middle_s)[typical].sum(axis=1).mean() > excess_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return np.asarray(intervals_s - taken(low_s))
