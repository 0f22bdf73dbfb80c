"""Profiles and measures training over plain TCP on hosts of the testbed."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.harness.network.hosts import Link, hosts
from benchmarks.harness.network.processes import Ranks, ranks
from benchmarks.harness.network.rates import measure_rates
from benchmarks.studies.throughput.shapes import ModelShape
from benchmarks.studies.throughput.tcp_training import (
    BUFFER_BYTES,
    TcpDiscipline,
    TcpJob,
    make_sides,
    tcp_main,
)
from pace.documents.steps import StepLink, StepsDocument, StepsOp, StepTimes
from pace.solver.least_bytes import least_bytes_servers

JITTER = 0.1
# What a link lets through at once, and what connections have under way, is nothing beside a transfer: whoever
# comes first to an idle link would otherwise be ahead by that much, and the others would never catch up.
PACKET_BYTES = 8 * 1024
BURST_MS = 0.2


@contextlib.contextmanager
def _started(job: TcpJob, link: Link) -> Iterator[tuple[Ranks, float]]:
    """Yield connected servers and workers on new hosts, and the rate of a link one way, in bytes a second."""
    count = job.servers + job.workers
    with hosts([link] * (2 * count)) as every:
        made, uploading = every[:count], every[count:]
        rate = measure_rates(made[:2], senders=(0,))[0] * 1e6 / 8
        sides = make_sides(job)
        with ranks("throughput", made, tcp_main, made, uploading, job, sides) as group:
            group.ask_each("connect", [()] * count)
            yield group, rate


def run_tcp(
    job: TcpJob, *, rate_mbit_s: float, steps: int, seed: int
) -> tuple[list[list[float]], list[dict[str, list[float]]], float]:
    """Train on new hosts; return each worker's step ends, the first worker's records, and the link's rate.

    The rate is that of one worker's link in bytes of payload per second, one way: no link of these carries
    data both ways.
    """
    with _started(job, even_link(rate_mbit_s)) as (group, rate):
        arguments = (steps, seed, time.monotonic() + 0.3)
        each = [arguments] * (job.servers + job.workers)
        replies = group.ask_each("train", each, timeout_s=3600)[job.servers :]
        return [ends for ends, _, _ in replies], replies[0][1], rate


def even_link(rate_mbit_s: float) -> Link:
    """Return a link that connections share about equally."""
    return Link(rate_mbit_s=rate_mbit_s, packet_bytes=PACKET_BYTES, burst_ms=BURST_MS)


def measure_shares(
    workers: int, *, size_bytes: int, link: Link, rounds: int, buffer_bytes: int | None = BUFFER_BYTES
) -> dict[str, float]:
    """Return for both directions how unequally simultaneous transfers share a link, as `share_spread`.

    In each round every worker pulls and then pushes `size_bytes` at one moment. The first of n to end had the
    largest weight of n, so many spreads above the mean as the largest of n normal numbers is on average.
    """
    compute_s = 2 * workers * size_bytes / (link.rate_mbit_s * 1e6 / 8)  # all have pulled before one pushes
    shape = ModelShape(name="one", layers=(size_bytes,), forward_s=(0.0,), backward_s=(compute_s,))
    job = job_of(shape, workers=workers, servers=1, discipline="fifo")
    job = replace(job, jitter=0.0, buffer_bytes=buffer_bytes)
    leads: dict[str, list[float]] = {"down": [], "up": []}
    with _started(job, link) as (group, _):
        for _ in range(rounds):
            start = time.monotonic() + 0.1
            replies = group.ask_each("train", [(1, 0, start)] * (1 + workers), timeout_s=600)[1:]
            for direction, found in leads.items():
                took = [record[0][direction][0] for _, record, _ in replies]
                found.append(np.log(max(took) / min(took)))
    largest = _expected_largest(workers)
    return {direction: float(np.mean(found)) / largest for direction, found in leads.items()}


def _expected_largest(count: int) -> float:
    """Return the mean of the largest of so many standard normal numbers."""
    return float(np.random.default_rng(0).normal(size=(100_000, count)).max(axis=1).mean())


def steps_document(
    job: TcpJob, records: Sequence[dict[str, list[float]]], bytes_per_s: float, name: str
) -> StepsDocument:
    """Return what a lone worker recorded as a steps document."""
    layers = range(len(job.layers))
    ops = [
        *(
            StepsOp(
                name=f"down/{at}", resource="downlink", server=job.servers_of[at], size_bytes=job.layers[at]
            )
            for at in layers
        ),
        *(
            StepsOp(
                name=f"forward/{at}",
                resource="worker",
                deps=(f"down/{at}", *([f"forward/{at - 1}"] if at else [])),
            )
            for at in layers
        ),
        *(
            StepsOp(
                name=f"backward/{at}",
                resource="worker",
                deps=(f"backward/{at + 1}" if at + 1 < len(layers) else f"forward/{at}",),
            )
            for at in layers
        ),
        *(
            StepsOp(
                name=f"up/{at}",
                resource="uplink",
                server=job.servers_of[at],
                size_bytes=job.layers[at],
                deps=(f"backward/{at}",),
            )
            for at in layers
        ),
    ]
    kinds = ("down", "forward", "backward", "up")
    window = job.window_bytes if job.discipline == "window" else None
    return StepsDocument(
        name=name,
        servers=job.servers,
        ops=tuple(ops),
        steps=tuple(
            StepTimes(
                duration_s=tuple(seconds for kind in kinds for seconds in record[kind]),
                start_s=tuple(seconds for kind in kinds for seconds in record[f"{kind}_start"]),
            )
            for record in records
        ),
        link=StepLink(bytes_per_s=bytes_per_s, window_bytes=window, discipline=job.discipline),
    )


def job_of(shape: ModelShape, *, workers: int, servers: int, discipline: TcpDiscipline) -> TcpJob:
    """Return a job on that many hosts; windows are a sixteenth of the model."""
    return TcpJob(
        workers=workers,
        servers=servers,
        layers=shape.layers,
        servers_of=least_bytes_servers(shape.layers, servers),
        forward_s=shape.forward_s,
        backward_s=shape.backward_s,
        jitter=JITTER,
        discipline=discipline,
        window_bytes=max(sum(shape.layers) // 16, 1),
    )


class TcpSystem:
    """Measures training over plain TCP; see ``compare.System``."""

    def __init__(self, discipline: TcpDiscipline, rate_mbit_s: float) -> None:
        self.name = f"tcp {discipline}"
        self.bytes_per_s = rate_mbit_s * 1e6 / 8 * 0.95
        self._discipline, self._rate_mbit_s = discipline, rate_mbit_s

    def profile(self, shape: ModelShape, servers: int, steps: int) -> StepsDocument:
        """Record a lone worker's steps."""
        alone = job_of(shape, workers=1, servers=servers, discipline=self._discipline)
        _, records, rate = run_tcp(alone, rate_mbit_s=self._rate_mbit_s, steps=steps, seed=0)
        return steps_document(alone, records, rate, shape.name)

    def ends_s(
        self, shape: ModelShape, workers: int, servers: int, steps: int, seed: int
    ) -> Sequence[Sequence[float]]:
        """Train and return when each worker's steps ended."""
        job = job_of(shape, workers=workers, servers=servers, discipline=self._discipline)
        return run_tcp(job, rate_mbit_s=self._rate_mbit_s, steps=steps, seed=seed)[0]
