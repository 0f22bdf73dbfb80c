"""Recorded steps: their length, how exactly a simulation replays them, and how much their compute varies.

For how long a receiver computes after each transfer is fitted to such measurements, too.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pace.documents.steps import ParsingOverhead, StepsDocument, StepTimes
from pace.errors import InvalidOptions
from pace.formats.fit import read_cost_csv
from pace_servers.throughput.simulate import simulate_steps

MOST_REPLAYED = 100


def recorded_step_s(steps: StepsDocument) -> float | None:
    """Return the mean length of the recorded steps in seconds; None without the starts of ops."""
    lengths = _recorded_lengths(steps)
    return float(np.mean(lengths)) if lengths else None


def _recorded_lengths(steps: StepsDocument) -> list[float]:
    transfers = [at for at, op in enumerate(steps.ops) if op.is_transfer and op.size_bytes]
    lengths = []
    for step in steps.steps:
        if step.start_s is None or not all(step.duration_s[at] for at in transfers):
            return []
        lengths.append(max(np.add(step.start_s, step.duration_s).tolist()))
    return lengths


def replay_error(steps: StepsDocument) -> float | None:
    """Return the median relative error of the recorded steps' lengths when each is simulated alone.

    None if the document does not have the starts of ops and the durations of transfers.
    """
    lengths = _recorded_lengths(steps)[:MOST_REPLAYED]
    if not lengths:
        return None
    run = simulate_steps(
        steps, 1, steps=len(lengths), skip=0, drawn=[list(range(len(lengths)))], num_recorded=0
    )
    replayed = np.diff(run.end_s, prepend=0.0)
    return float(np.median(np.abs(replayed / np.array(lengths) - 1)))


def rate_error(steps: StepsDocument) -> float:
    """Return the relative difference between the link's rate and what the recording implies.

    It is the largest over all links, relative to the link's rate at which the time of a step's bytes is the
    busy time; 0 if the document does not have the starts of ops.
    """
    return max((abs(rate / steps.link.bytes_per_s - 1) for rate in _implied_rates(steps)), default=0.0)


def implied_bytes_per_s(steps: StepsDocument) -> float | None:
    """Return the median over links of the rate that the recorded busy times imply; None without starts."""
    rates = _implied_rates(steps)
    return float(np.median(rates)) if rates else None


def _implied_rates(steps: StepsDocument) -> list[float]:
    """Return for each link that was busy its bytes in a second of being busy."""
    rates = []
    recorded = [step for step in steps.steps if step.start_s is not None]
    for resource in ("downlink", "uplink"):
        for server in range(steps.servers):
            on_link = [
                at
                for at, op in enumerate(steps.ops)
                if op.resource == resource and (op.server or 0) == server and op.size_bytes
            ]
            busy = sum(_busy_s(step, on_link) for step in recorded)
            carried = len(recorded) * sum(steps.ops[at].size_bytes or 0 for at in on_link)
            if busy:
                rates.append(carried / busy)
    return rates


def _busy_s(step: StepTimes, ops: Sequence[int]) -> float:
    """Return for how many seconds at least one of these ops was running."""
    assert step.start_s is not None
    busy, until = 0.0, 0.0
    for start, duration in sorted((step.start_s[at], step.duration_s[at]) for at in ops):
        busy += max(start + duration - max(start, until), 0.0)
        until = max(until, start + duration)
    return busy


def compute_variation(steps: StepsDocument) -> float:
    """Return the standard deviation of the workers' compute in a step, relative to its mean."""
    compute = [at for at, op in enumerate(steps.ops) if op.resource == "worker"]
    totals = np.array([[step.duration_s[at] for at in compute] for step in steps.steps]).sum(axis=1)
    mean = float(totals.mean())
    return float(totals.std()) / mean if mean else 0.0


def fit_overhead(size_bytes: npt.ArrayLike, overhead_s: npt.ArrayLike) -> ParsingOverhead:
    """Fit seconds_per_byte * bytes + seconds by least squares, with both coefficients at least 0.

    Parameters
    ----------
    size_bytes, overhead_s : arrays of shape (num_transfers,)
        Bytes of each transfer, and the seconds from its last packet to the end of its parsing.

    Raises
    ------
    InvalidOptions
        If all transfers have one size.
    """
    from scipy.optimize import nnls

    sizes = np.asarray(size_bytes, dtype=np.float64)
    if len(np.unique(sizes)) < 2:
        raise InvalidOptions("all transfers have one size: a line needs two or more")
    # Scaled, so that both columns have the same weight in the solver's tolerance.
    scale = float(sizes.max())
    found, _ = nnls(np.column_stack([sizes / scale, np.ones(len(sizes))]), np.asarray(overhead_s))
    return ParsingOverhead(seconds_per_byte=float(found[0]) / scale, seconds=float(found[1]))


def read_overhead_csv(path: str | Path) -> ParsingOverhead:
    """Fit to a table of bytes and seconds.

    Raises
    ------
    FormatError
        If the file is not such a table.
    InvalidOptions
        If all transfers have one size.
    """
    log = read_cost_csv(path)
    sizes, seconds = zip(*log.samples, strict=True)
    return fit_overhead(sizes, seconds)
