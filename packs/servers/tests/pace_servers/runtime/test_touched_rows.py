"""A recommender with a table of 102 MB: bytes on the wire against its plan and its prediction."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.documents.options import Options
from pace.documents.profile import parse_profile
from pace.documents.push_pull import PushPull
from pace.documents.steps import parse_steps
from pace.runtime.profiler import Capture
from pace_servers.planning.optimize import optimize_servers
from pace_servers.throughput import steps_from_profile
from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import run_ranks
from tests.runtime.training import backward, wrap

SIZE, STEPS, BATCH = 2, 4, 256
# The first table has 102.4 MB.
TABLES, WIDTH = (400_000, 30_000, 200), 64


class _Recommender(nn.Module):
    """Dense features and bags of three tables, their dot products, and layers on top (Naumov et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, sparse=True, mode="sum") for rows in TABLES)
        self.top = nn.Sequential(nn.Linear(WIDTH + 6, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: torch.Tensor, bags: list[torch.Tensor]) -> torch.Tensor:
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], 1)
        rows, columns = torch.triu_indices(4, 4, offset=1)
        dots = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        # Bounded: in a job that diverges, rows that are not numbers differ from what servers have for ever.
        out: torch.Tensor = self.top(torch.cat([low, dots / WIDTH], 1)).sigmoid().mean()
        return out


def _batch(rank: int, step: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return features, and bags with frequent and rare keys."""
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    bags = [(torch.rand(BATCH, 10, generator=drawn) ** 2 * rows).long() for rows in TABLES]
    return torch.rand(BATCH, 13, generator=drawn), bags


# A profile, bytes sent and received in a synchronous and an asynchronous step, and recorded steps.
Found = tuple[bytes, tuple[float, ...], tuple[float, ...], bytes]


def _carried(optimizer: Any) -> Any:
    """Return what the kernel has sent and had acknowledged, and received."""
    return np.sum([link._stream.carried_bytes for link in optimizer._transport._links], axis=0)


def _run(rank: int, _size: int, servers: list[str]) -> Found:
    from pace_servers.runtime import ParameterServers, asynchronous

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    model = _Recommender()
    with Capture(model, None, iterations=3, warmup=1) as capture:
        step = 100
        while not capture.finished:
            model.zero_grad()
            backward(model(*_batch(rank, step)))
            capture.step()
            step += 1
    exchange = PushPull(servers=len(servers), worker_bytes_per_s=1e9, partition_s=5e-5)
    profile = capture.profile("recommender", workers=SIZE, allreduce=exchange)

    wrapped = wrap("gloo", sgd(model), model, over="servers", servers=servers, mode="barrier")
    before: Any = 0
    for step in range(1 + STEPS):
        if step == 1:  # the first step may settle the order of gradients
            wrapped.synchronize()
            before = _carried(wrapped)
        wrapped.zero_grad()
        backward(model(*_batch(rank, step)))
        wrapped.step()
    wrapped.synchronize()
    synchronous = (_carried(wrapped) - before) / STEPS
    wrapped.close()

    over = ParameterServers(servers=servers)
    loose = asynchronous(sgd(model), model, communication=over, staleness=0, timeout_s=60.0)
    loose.record_steps(STEPS)
    for step in range(1 + STEPS):
        if step == 1:
            before = _carried(loose)
        loose.zero_grad()
        backward(model(*_batch(rank, step)))
        loose.step()
    apart = (_carried(loose) - before) / STEPS
    steps = loose.recorded_steps("recommender", bytes_per_s=1e9)
    loose.synchronize()
    loose.close()
    return profile.to_json(), tuple(synchronous.tolist()), tuple(apart.tolist()), steps.to_json()


@pytest.mark.slow
def test_the_wire_carries_what_plan_and_prediction_say() -> None:
    """Synchronous and asynchronous training with two servers, sent and received: within 5 %."""
    with served(2) as (servers, _):
        ranks = run_ranks(_run, SIZE, servers)
    for captured, synchronous, asynchronous, recorded in ranks:
        profile = parse_profile(captured)
        schedule = optimize_servers(profile, Options(exchange="servers"))
        assert schedule.cluster is not None
        ratios = {ratio.gradient: ratio for ratio in schedule.cluster.ratios}
        assert set(ratios) >= {"tables.0.weight", "tables.1.weight"}
        planned = np.zeros(2)
        for gradient in profile.gradients:
            ratio = ratios.get(gradient.name)
            planned += gradient.size_bytes * np.array([ratio.push, ratio.pull] if ratio else [1.0, 1.0])
        assert planned.max() < 0.1 * sum(gradient.size_bytes for gradient in profile.gradients)
        assert synchronous == pytest.approx(tuple(planned), rel=0.05)
        for steps in (parse_steps(recorded), steps_from_profile(profile, bytes_per_s=1e9, servers=2)):
            there = steps.at_workers(SIZE)
            predicted = [sum(there.bytes_of("uplink")), sum(there.bytes_of("downlink"))]
            assert asynchronous == pytest.approx(tuple(predicted), rel=0.05)
