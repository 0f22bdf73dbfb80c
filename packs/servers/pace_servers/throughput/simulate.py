"""Simulates asynchronous training: workers that repeat recorded steps over shared links.

The algorithm is that of Li, Yan, Paolieri and Golubchik, "Throughput Prediction of Asynchronous SGD in
TensorFlow" (ICPE 2020), with errors of the printed version corrected, and with max-min sharing for any number
of servers. This module simulates one run; ``pace_servers.throughput.prediction`` combines many.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.documents.steps import StepsDocument
from pace.errors import InvalidOptions
from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace_servers.documents.fleet import Fleet
from pace_servers.throughput.graph import StepGraph
from pace_servers.throughput.kernels.arrays import ClientArrays, RunRecord, StepArrays, new_record
from pace_servers.throughput.orders import deviates_of, priorities_of, rules_of, spreads_of

MOST_STEPS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSimulation:
    """The result of one run.

    Attributes
    ----------
    end_s, worker, staleness, kept : arrays of shape (num_ended_steps,)
        The ended steps, by time: end in seconds, worker, staleness, and whether the update counts. Staleness
        is the number of other workers' updates between a worker's pull and its own update; -1 if the step
        pushed nothing. `kept` is False for updates that came after their round.
    measured_s : tuple of float
        Start and end of the window in which throughput is measured: from the end of the warm-up until the
        first worker has done its steps (or all of them together have).
    carried_bytes : array of shape (num_workers, 2 * num_servers)
        Bytes that each connection carried in this window: downlinks, then uplinks.
    total_bytes : array of shape (num_workers, 2 * num_servers)
        The same for the whole run.
    op_end_s : array of shape (num_workers, num_recorded, num_ops)
        When the ops of the first steps ended, in seconds.
    """

    end_s: FloatArray
    worker: IntArray
    staleness: IntArray
    kept: BoolArray
    measured_s: tuple[float, float]
    carried_bytes: FloatArray
    total_bytes: FloatArray
    op_end_s: FloatArray

    @property
    def steps_per_s(self) -> float:
        """Counted steps of all workers per second in the measured window; 0 if the window is empty."""
        start, end = self.measured_s
        counted = int(((self.end_s > start) & (self.end_s <= end) & self.kept).sum())
        return counted / (end - start) if end > start else 0.0

    @property
    def measured_staleness(self) -> IntArray:
        """Staleness of the updates in the measured window."""
        start, end = self.measured_s
        inside = (self.end_s > start) & (self.end_s <= end) & (self.staleness >= 0)
        return np.asarray(self.staleness[inside])

    def step_s(self, worker: int) -> FloatArray:
        """Return the seconds of each step of a worker after its first, including waits at a barrier."""
        return np.diff(self.end_s[self.worker == worker])


def simulate_steps(
    document: StepsDocument,
    workers: int,
    *,
    fleet: Fleet | None = None,
    steps: int = 400,
    skip: int = 50,
    seed: int = 0,
    drawn: Sequence[Sequence[int]] | None = None,
    num_recorded: int = 0,
) -> StepSimulation:
    """Simulate `workers` workers that each repeat steps drawn from a document.

    Parameters
    ----------
    workers
        Number of workers.
    fleet
        Differences between workers, and their barrier (default: equal workers without a barrier).
    steps, skip
        Number of steps of each worker, and how many of them are warm-up. If the workers of a fleet differ,
        these are the numbers of all workers together, as fast workers do more steps.
    seed
        The same seed gives the same run.
    drawn : integers of shape (workers, any)
        The recorded steps that each worker takes, repeated from the start when they run out (default: drawn
        uniformly with replacement).
    num_recorded
        Record the ends of ops for this number of first steps.

    Returns
    -------
    StepSimulation
        Computed in O(log n) for each op, and O(workers * servers) for each change of a link's users.

    Raises
    ------
    InvalidOptions
        If a number is out of range.
    """
    from pace_servers.throughput.kernels.engine import run

    fleet = fleet or Fleet()
    _refuse_misfits(document, workers, fleet, steps, skip)
    document = document.at_workers(workers)
    graph = StepGraph.of(document)
    rng = np.random.default_rng([seed, 0])
    if drawn is None:
        chosen = rng.integers(len(document.steps), size=(workers, steps))
    else:
        chosen = np.array(drawn, dtype=np.int64)
        if chosen.ndim != 2 or len(chosen) != workers or not chosen.size:
            raise InvalidOptions(f"drawn has the shape {chosen.shape}: expected ({workers}, steps)")
        if chosen.min() < 0 or chosen.max() >= len(document.steps):
            raise InvalidOptions(f"drawn names steps up to {chosen.max()}, there are {len(document.steps)}")
    priority = priorities_of(document, graph, seed)
    order = rng.integers(len(priority), size=chosen.shape)
    record = new_record(workers, document.servers, steps, len(document.ops), num_recorded)
    run(
        graph.ops,
        StepArrays(
            duration=graph.duration_s,
            roots=graph.roots,
            drawn=chosen.astype(np.int64),
            order=order.astype(np.int64),
            priority=priority,
            deviate=deviates_of(document, workers, seed),
            spread=spreads_of(document),
        ),
        _clients(document, workers, fleet),
        rules_of(document, fleet, workers, steps=steps, skip=skip, in_total=not fleet.is_uniform),
        record,
    )
    return _result(record)


def _refuse_misfits(document: StepsDocument, workers: int, fleet: Fleet, steps: int, skip: int) -> None:
    if not 1 <= workers <= 10_000:
        raise InvalidOptions(f"{workers} workers: expected 1 to 10000")
    if steps < 1 or not 0 <= skip < steps:
        raise InvalidOptions(f"{steps} steps of which {skip} are skipped: expected more steps than that")
    if workers * steps > MOST_STEPS:
        raise InvalidOptions(
            f"{workers} workers with {steps} steps each: expected at most {MOST_STEPS} together"
        )
    if (fleet.pull_every > 1 or fleet.push_every > 1) and not any(
        op.resource == "worker" and any(step.duration_s[at] for step in document.steps)
        for at, op in enumerate(document.ops)
    ):
        raise InvalidOptions(
            "the document has no compute, so steps without a transfer would take no time: give durations of "
            "the worker's ops, or leave pull_every and push_every out"
        )


def _clients(document: StepsDocument, workers: int, fleet: Fleet) -> ClientArrays:
    def in_turns(values: Sequence[float | None], default: float, count: int = workers) -> FloatArray:
        chosen = [values[at % len(values)] for at in range(count)] if values else [None] * count
        return np.array([default if value is None else value for value in chosen], dtype=np.float64)

    rate = document.link.bytes_per_s
    servers = in_turns(fleet.server_bytes_per_s, rate, document.servers)
    return ClientArrays(
        speed=in_turns(fleet.speed, 1.0),
        join=in_turns(fleet.join_s, 0.0),
        leave=in_turns(fleet.leave_s, np.inf),
        down=np.concatenate([in_turns(fleet.download_bytes_per_s, rate), servers]),
        up=np.concatenate([in_turns(fleet.upload_bytes_per_s, rate), servers]),
    )


def _result(record: RunRecord) -> StepSimulation:
    ended = int(record.num_ended[0])
    start, end = record.span.tolist()
    carried = record.carried_hi - record.carried_lo
    if np.isnan(end):  # every worker left before its last step
        end = float(record.time[ended - 1]) if ended else 0.0
        carried = record.carried - record.carried_lo
    if np.isnan(start):
        start, carried = 0.0, record.carried
    return StepSimulation(
        end_s=record.time[:ended],
        worker=record.worker[:ended],
        staleness=record.staleness[:ended],
        kept=record.kept[:ended],
        measured_s=(start, end),
        carried_bytes=carried,
        total_bytes=record.carried,
        op_end_s=record.op_end,
    )
