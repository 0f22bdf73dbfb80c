"""A recommender like DLRM on made data, on two ranks and two servers in processes of their own."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pace.errors import CommunicationFailed
from pace.runtime.torch import DistributedOptimizer
from pace_servers.embedding import EmbeddingTables, RowAdagrad, RowSGD, ShardedEmbedding
from pace_servers.runtime.options import ParameterServers
from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import run_ranks, try_ranks
from tests.runtime.training import backward

SIZE, STEPS = 2, 8
TABLES, WIDTH = (3000, 500, 40), 8


class _Recommender(nn.Module):
    """Dense features and three bags, their dot products, and a layer on top (Naumov et al. 2019)."""

    def __init__(self, tables: list[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bottom = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
        self.tables = nn.ModuleList(tables)
        self.top = nn.Linear(WIDTH + 6, 1)

    def forward(self, dense: torch.Tensor, bags: list[torch.Tensor]) -> torch.Tensor:
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], 1)
        rows, columns = torch.triu_indices(4, 4, offset=1)
        dots = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        out: torch.Tensor = self.top(torch.cat([low, dots], 1)).squeeze(1)
        return out


def _batch(rank: int, step: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Return features, bags with frequent and rare keys, and clicks that follow from them."""
    drawn = torch.Generator().manual_seed(100 * step + rank)
    dense = torch.rand(16, 4, generator=drawn)
    bags = [(torch.rand(16, 3, generator=drawn) ** 3 * rows).long() for rows in TABLES]
    return dense, bags, ((dense.sum(1) + bags[2].float().mean(1) / 40) > 2.3).float()


def _sharded(tables: EmbeddingTables) -> list[ShardedEmbedding]:
    return [
        ShardedEmbedding(rows, WIDTH, tables=tables, optimizer=RowAdagrad(lr=0.1), mode="sum", seed=number)
        for number, rows in enumerate(TABLES)
    ]


def _train(rank: int, _size: int, servers: list[str]) -> Any:
    """Train with the next batch's rows asked for ahead, except in every third step."""
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        sharded = _sharded(tables)
        model = _Recommender([*sharded])
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=60)
        for step in range(STEPS):
            dense, bags, clicks = _batch(rank, step)
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(dense, bags), clicks)
            if step % 3:
                for table, bag in zip(sharded, _batch(rank, step + 1)[1], strict=True):
                    table.prefetch(bag)
            backward(loss)
            optimizer.step()
            tables.step()
        optimizer.synchronize()
        rows = [table.look_up(torch.arange(size)) for table, size in zip(sharded, TABLES, strict=True)]
        dense_weights = {name: each.detach().clone() for name, each in model.named_parameters()}
        optimizer.close()
        return rows, dense_weights


def _train_plainly(initial: list[torch.Tensor]) -> Any:
    bags = [nn.EmbeddingBag.from_pretrained(each, freeze=False, mode="sum") for each in initial]
    model = _Recommender([*bags])
    optimizers = [
        torch.optim.SGD([*model.bottom.parameters(), *model.top.parameters()], lr=0.1),
        torch.optim.Adagrad(model.tables.parameters(), lr=0.1),
    ]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for rank in range(SIZE):
            dense, keys, clicks = _batch(rank, step)
            loss = nn.functional.binary_cross_entropy_with_logits(model(dense, keys), clicks)
            backward(loss / SIZE)
        for optimizer in optimizers:
            optimizer.step()
    return [each.weight.detach() for each in bags], dict(model.named_parameters())


def _initial(_rank: int, _size: int, servers: list[str]) -> list[torch.Tensor]:
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        return [
            table.initial_rows(torch.arange(size))
            for table, size in zip(_sharded(tables), TABLES, strict=True)
        ]


def test_a_recommender_has_the_weights_of_plain_training() -> None:
    """Two ranks, two servers, rows asked for ahead and not: tables and layers are those of one process."""
    with served(2) as (servers, _):
        ranks = run_ranks(_train, SIZE, servers)
        initial = run_ranks(_initial, 1, servers)[0]
    rows, dense = _train_plainly([each.clone() for each in initial])
    for found_rows, found_dense in ranks:
        for found, expected in zip(found_rows, rows, strict=True):
            assert (found - expected).abs().max() < 2e-5
        for name, found in found_dense.items():
            assert (found - dense[name]).abs().max() < 2e-5, name
    assert any((found - first).abs().max() > 0.1 for found, first in zip(rows, initial, strict=True))


def _add_up(rank: int, _size: int, servers: list[str]) -> list[torch.Tensor]:
    """Train tables whose gradients do not depend on their rows; return how each row has moved."""
    moved = []
    for staleness in (2, None):
        with EmbeddingTables(
            ParameterServers(servers=servers), staleness=staleness, average=False, timeout_s=60
        ) as tables:
            table = ShardedEmbedding(40, 4, tables=tables, optimizer=RowSGD(lr=1.0), mode="sum")
            for step in range(STEPS):
                backward(table(_batch(rank, step)[1][2]).sum())
                tables.step()
            table.look_up(torch.tensor([0]))  # behind this rank's last update
            dist.barrier()
            keys = torch.arange(40)
            moved.append(table.initial_rows(keys) - table.look_up(keys))
            dist.barrier()
    return moved


def test_updates_of_ranks_that_do_not_wait_are_each_applied_once() -> None:
    """With a staleness and without a limit, rows have moved by the number of times that they were used."""
    with served(2) as (servers, _):
        ranks = run_ranks(_add_up, SIZE, servers)
    used = torch.cat([_batch(rank, step)[1][2].flatten() for rank in range(SIZE) for step in range(STEPS)])
    expected = torch.bincount(used, minlength=40).float()[:, None].expand(40, 4)
    for moved in ranks:
        for each in moved:
            assert (each - expected).abs().max() < 1e-4


BIG_ROWS, BIG_WIDTH, BIG_BAGS = 20_000_000, 64, 600


def _count(rank: int, _size: int, servers: list[str]) -> tuple[int, int, int, str]:
    """Train a table of 5.1 GB under a limit of memory; return what was carried, and the bytes of rows."""
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        table = ShardedEmbedding(BIG_ROWS, BIG_WIDTH, tables=tables, optimizer=RowSGD(lr=0.1), mode="sum")
        _limit_memory(1 << 30)
        try:
            refused = ""
            torch.zeros(BIG_ROWS, BIG_WIDTH)
        except RuntimeError as error:
            refused = str(error)
        before, touched, predicted = tables.carried_bytes, 0, np.zeros(2)
        for step in range(3):
            drawn = torch.Generator().manual_seed(10 * step + rank)
            bags = torch.randint(0, BIG_ROWS, (BIG_BAGS, 5), generator=drawn)
            touched += len(set(bags.flatten().tolist())) * BIG_WIDTH * 4
            predicted += table.step_bytes(bags)
            backward(table(bags).square().mean())
            tables.step()
        table.look_up(torch.tensor([0]))  # behind the last update
        sent, received = np.subtract(tables.carried_bytes, before).tolist()
        assert (sent, received) == pytest.approx(tuple(predicted), rel=0.01)
        return sent, received, touched, refused


def _limit_memory(more_bytes: int) -> None:
    """Let this process have so many bytes more than now, as ``ulimit -v`` would."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes,) * 2)


@pytest.mark.races_with_machine(reason="the kernel counts bytes again that it sends again after a pause")
def test_a_table_larger_than_a_workers_memory_trains() -> None:
    """5.1 GB, where a worker may have 1 GiB; what the kernel carries is within 5 % of the rows touched."""
    with served(2) as (servers, _):
        ranks = run_ranks(_count, SIZE, servers)
    for sent, received, touched, refused in ranks:
        assert "allocate memory" in refused
        assert touched < sent < 1.05 * touched  # gradients, and the keys of both directions
        assert touched < received < 1.05 * touched


def _leave_early(rank: int, _size: int, servers: list[str]) -> None:
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        table = ShardedEmbedding(100, 4, tables=tables, optimizer=RowSGD(lr=0.1))
        for _ in range(2 if rank else 4):
            backward(table(torch.tensor([[1, 2]])).sum())
            tables.step()


def _disagree(rank: int, _size: int, servers: list[str]) -> None:
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        ShardedEmbedding(100 + rank, 4, tables=tables, optimizer=RowSGD(lr=0.1))


def test_a_rank_that_leaves_or_disagrees_is_named() -> None:
    """Others learn that it left; the rank whose table differs, or the other, learns how."""
    with served(1) as (servers, _):
        stays, _ = try_ranks(_leave_early, SIZE, servers)
        differ = try_ranks(_disagree, SIZE, servers)
    assert stays.error == CommunicationFailed.__name__
    assert "rank 1 has left the training" in stays.message
    assert any("differs between ranks" in each.message for each in differ)


def _outlive(rank: int, _size: int, servers: list[str], pids: list[int], how: int) -> None:
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=8) as tables:
        table = ShardedEmbedding(100, 4, tables=tables, optimizer=RowSGD(lr=0.1))
        for step in range(1000):
            backward(table(torch.tensor([[1, 2]])).sum())
            tables.step()
            if step == 2 and rank == 0:
                os.kill(pids[1], how)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_or_hangs_ends_all_ranks(how: signal.Signals) -> None:
    """Each rank gets an error that names a server or the rank that lost it; none hangs."""
    with served(2) as (servers, pids):
        ends = try_ranks(_outlive, SIZE, servers, pids, how)
    for end in ends:
        assert end.error == CommunicationFailed.__name__
        assert "server 1" in end.message or servers[1] in end.message or "rank" in end.message


def test_sends_are_counted_in_the_right_direction() -> None:
    """A lookup alone sends little and receives rows."""
    with served(1) as (servers, _):
        sent, received = run_ranks(_look_up, 1, servers)[0]
    assert sent < 10_000 < 64_000 < received


def _look_up(_rank: int, _size: int, servers: list[str]) -> tuple[int, int]:
    with EmbeddingTables(ParameterServers(servers=servers), timeout_s=60) as tables:
        table = ShardedEmbedding(1000, 16, tables=tables, optimizer=RowSGD(lr=0.1))
        table.look_up(torch.arange(1000))
        return tables.carried_bytes


@pytest.mark.parametrize("wrong", [{"staleness": -1}, {"timeout_s": 0}, {"average": 1}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EmbeddingTables(ParameterServers(servers=["127.0.0.1:9"]), **wrong)
