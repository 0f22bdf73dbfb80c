"""What a unit's own collectives take, measured: replicas train, each for itself, and compute waits.

Every host of the layout trains, so that as many processes are at work as later. Nobody sums gradients between
replicas, and PACE is not there. What compute then waits for before a unit's forward pass and after its
backward pass is torch's all-gather and reduce-scatter, with torch's own work around them.
"""

import gc
import statistics
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from benchmarks.harness.layouts import Layout
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import join_torch
from benchmarks.harness.network.processes import Answer, answering, ranks
from benchmarks.harness.workload.replay import Replay, plan_replay, scale_of
from benchmarks.harness.workload.replicas import shard, unit_starts
from benchmarks.harness.workload.two_wires import InnerTimes
from pace.documents.profile import Profile

_PORT = 19200
_WARMUP, _ITERATIONS = 1, 4

Spans = list[tuple[float, float]]
"""When each op of an iteration ran on the stream, in seconds: the forward pass, then the backward pass."""


def measure_inner_times(on: Sequence[Host], layout: Layout, profile: Profile) -> InnerTimes:
    """Measure what compute waits for; `profile` holds whole gradients.

    A rank that is early waits for the others of its replica, which is no cost of the collective. So the least
    wait of a replica counts, and of all iterations and replicas the median.
    """
    with ranks("collectives within a replica", on, _main, on, layout, profile) as running:
        running.ask("join", _PORT)
        running.ask("train", _WARMUP)
        spans: list[list[Spans]] = running.ask("train", _ITERATIONS)
    starts = unit_starts(plan_replay(profile).stages)
    waits = [[waits_of(iteration, starts) for iteration in own] for own in spans]
    gather_s: list[float] = []
    scatter_s: list[float] = []
    for unit in range(len(starts)):
        for found, kind in ((gather_s, 0), (scatter_s, 1)):
            found.append(
                statistics.median(
                    min(own[iteration][kind][unit] for own in waits[first : first + layout.shards])
                    for iteration in range(_ITERATIONS)
                    for first in range(0, len(waits), layout.shards)
                )
            )
    return InnerTimes(gather_s=tuple(gather_s), scatter_s=tuple(scatter_s))


def waits_of(spans: Spans, starts: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return for how long the stream stood still before each unit's forward and after its backward pass.

    Parameters
    ----------
    spans
        One op before the first stage, the stages, the stages from the last one, and one op behind them.
    starts
        With which stage each unit begins.
    """
    stages = (len(spans) - 2) // 2
    still = [0.0, *(max(later[0] - earlier[1], 0.0) for earlier, later in pairwise(spans))]
    return [still[1 + first] for first in starts], [still[2 * stages - first + 1] for first in starts]


class _ShardedRank:
    """One rank that trains without other replicas; its public methods are the requests it answers."""

    def __init__(self, rank: int, on: Sequence[Host], layout: Layout, profile: Profile) -> None:
        self._rank, self._on, self._layout = rank, on, layout
        self._model = Replay(profile, rank=rank)

    def join(self, port: int) -> None:
        """Join all ranks and shard the model over this replica's."""
        join_torch(self._rank, self._on, port)
        shard(self._model, self._rank, self._on, self._layout.shards, alone=True)

    def train(self, iterations: int) -> list[Spans]:
        """Compute gradients and drop them; return when each op of each iteration ran."""
        stream = self._model.stream
        found = []
        gc.disable()
        for number in range(iterations):
            record: list[tuple[str, float, float]] = []
            stream.record = record
            dist.barrier()
            self._model(torch.tensor([scale_of(number)])).backward()
            self._model.zero_grad()
            found.append([(started, ended) for _, started, ended in record])
        gc.enable()
        stream.record = None
        return found


def _main(rank: int, on: Sequence[Host], layout: Layout, profile: Profile) -> Answer:
    torch.set_num_threads(1)
    return answering(_ShardedRank(rank, on, layout, profile))
