"""From logs of any known tool to one all-reduce cost: what ``pace fit`` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.errors import FormatError, InvalidOptions
from pace.formats.cost_csv import is_cost_header, read_cost_csv
from pace.formats.cost_log import CostLog
from pace.formats.horovod_timeline import TOOL as HOROVOD_TIMELINE
from pace.formats.horovod_timeline import read_horovod_cost
from pace.formats.nccl_tests import read_nccl_tests
from pace.formats.osu import read_osu
from pace.formats.reading import open_binary
from pace.formats.recognize import head_of, refuse_foreign

_READERS: dict[str, Callable[[str | Path], CostLog]] = {
    "nccl-tests": read_nccl_tests,
    "osu": read_osu,
    "horovod-timeline": read_horovod_cost,
    "csv": read_cost_csv,
}

FORMATS = tuple(_READERS)

_SNIFFED_BYTES = 1 << 16
_MARKERS = {
    "horovod-timeline": ("NEGOTIATE_", '"process_sort_index"'),
    "nccl-tests": ("busbw", '"bus_bw"'),
    "osu": ("# OSU ", "# Size "),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCost:
    """The cost of an all-reduce, fitted to all logs.

    Attributes
    ----------
    allreduce
        The measured samples, as a profile holds them.
    workers
        How many workers were measured.
    affine, affine_error
        The line with the least relative squared error, and its largest relative error: how much a
        model with one latency and one bandwidth would be off.
    """

    allreduce: SampledAllReduce
    workers: int
    logs: tuple[CostLog, ...]
    affine: AffineAllReduce
    affine_error: float


def read_cost_log(path: str | Path, format: str = "auto") -> CostLog:  # noqa: A002 - the option's name
    """Read one log; "auto" tells the format from the content.

    Raises
    ------
    FormatError
        If the format is not recognized or the file cannot be read as it.
    """
    if format == "auto":
        format = _recognize(path)  # noqa: A001
    if format not in _READERS:
        raise InvalidOptions(f'no log format "{format}": choose auto or one of {", ".join(FORMATS)}')
    return _READERS[format](path)


def fit_cost(
    paths: Sequence[str | Path],
    *,
    workers: int | None = None,
    format: str = "auto",  # noqa: A002
) -> FittedCost:
    """Fit one cost to the measurements of one or several logs, all of the same number of workers.

    Raises
    ------
    FormatError
        If a log cannot be read.
    InvalidOptions
        If the logs disagree on the number of workers, or none says it and `workers` is not given.
    """
    logs = tuple(read_cost_log(path, format) for path in paths)
    said = {log.workers for log in logs if log.workers is not None}
    if workers is not None:
        said = {workers}
    if not said:
        raise InvalidOptions("the logs do not say how many workers took part: give their number")
    if len(said) > 1:
        shown = ", ".join(f"{log.path}: {log.workers}" for log in logs if log.workers is not None)
        raise InvalidOptions(
            f"the logs are of different numbers of workers ({shown}): fit each number separately"
        )
    samples = sorted(sample for log in logs for sample in log.samples)
    affine, error = _affine(np.array(samples))
    return FittedCost(
        allreduce=SampledAllReduce(samples=tuple(samples), ranks=_ranks(logs, workers or max(said))),
        workers=said.pop(),
        logs=logs,
        affine=affine,
        affine_error=error,
    )


def _ranks(logs: Sequence[CostLog], workers: int) -> int:
    """Return how many ranks the logs are of: benchmarks wait for all of them, a timeline is one rank's."""
    return 1 if any(log.tool == HOROVOD_TIMELINE for log in logs) else workers


def _affine(samples: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> tuple[AffineAllReduce, float]:
    from scipy.optimize import nnls  # 0.2 s to import

    sizes, seconds = samples[:, 0], samples[:, 1]
    weights = 1.0 / np.maximum(seconds, seconds.max() * 1e-9)
    scale = float(sizes.max())
    matrix = np.stack([weights, weights * sizes / scale], axis=1)
    (latency, slope), _ = nnls(matrix, weights * seconds)
    affine = AffineAllReduce(latency_s=float(latency), seconds_per_byte=float(slope) / scale)
    predicted = affine.latency_s + sizes * affine.seconds_per_byte
    positive = seconds > 0
    return affine, float(np.abs(predicted[positive] / seconds[positive] - 1).max())


def _recognize(path: str | Path) -> str:
    """Tell the format from words that only one tool writes; a batch system's log may come before them."""
    first = ""
    with open_binary(path) as file:
        while head := file.read(_SNIFFED_BYTES):
            # A marker may lie across the end of what was read.
            text = (head + file.readline()).decode("utf-8", errors="replace")
            first = first or next(
                (line for line in text.splitlines() if line.strip() and not line.startswith("#")), ""
            )
            if is_cost_header(first):  # further columns may have the names of any tool
                return "csv"
            for name, markers in _MARKERS.items():
                if any(marker in text for marker in markers):
                    return name
    if "," in first and not first.lstrip().startswith(("{", "[")):
        return "csv"
    refuse_foreign(head_of(path), path)
    raise FormatError(
        path, f"not a log of a known tool ({', '.join(FORMATS)}); its first line is {first[:40]!a}"
    )
