"""Asynchronous training and bounded staleness: what holds instead of equal weights."""

import contextlib
import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pace.errors import CommunicationFailed
from pace_servers.runtime.server import Server
from pace_servers.runtime.shared_weights import Clocks
from tests.pace_servers.runtime.links import Worker, layout_of
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import Case, Weights, backward, difference, equal_bits, train_plainly, trainable

SIZE = 3
STEPS = 5


@given(st.integers(1, 5), st.none() | st.integers(0, 3), st.lists(st.integers(0, 4), max_size=60))
def test_nobody_is_let_go_on_too_early_or_too_late(
    size: int, staleness: int | None, moves: list[int]
) -> None:
    """Whoever may go on is at most `staleness` ahead of the slowest, and whoever may not is further ahead."""
    clocks = Clocks(size, staleness)
    waiting: set[int] = set()
    for worker in (move % size for move in moves):
        if worker in waiting:
            continue
        waiting.add(worker)
        waiting -= set(clocks.advance(worker))
        slowest = min(clocks.values)
        for each in range(size):
            ahead = clocks.values[each] - slowest
            assert (each in waiting) == (staleness is not None and ahead > staleness)
    assert staleness is None or clocks.largest_lead <= staleness
    assert len(waiting) < size or not waiting


@given(st.integers(2, 5), st.integers(0, 2))
def test_a_worker_that_left_is_not_waited_for(size: int, staleness: int) -> None:
    """The others go on as if it had never been there."""
    clocks = Clocks(size, staleness)
    for _ in range(staleness):
        assert clocks.advance(1) == [1]
    assert clocks.advance(1) == []
    released: list[int] = []
    for worker in (each for each in range(size) if each != 1):
        released += clocks.leave(worker)
    assert released == [1]


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_fast_worker_leads_by_no_more_than_the_bound(staleness: int) -> None:
    """One of two workers stops pushing: the other one gets exactly `staleness` steps further, then waits."""
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        tensors = [torch.ones(20_000), torch.ones(20_000)]
        for worker, tensor in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of([tensor], purpose="weights", staleness=staleness))
        workers[0].start(0, tensors[0], seed=True).wait()
        for _ in range(staleness):
            tensors[0].fill_(1.0)
            workers[0].start(0, tensors[0]).wait()
        tensors[0].fill_(1.0)
        beyond = workers[0].start(0, tensors[0])
        assert not beyond.event.wait(0.3)
        tensors[1].fill_(10.0)
        workers[1].start(0, tensors[1]).wait()
        beyond.wait()
        assert torch.equal(tensors[0], torch.full((20_000,), 12.0 + staleness))
        for worker in workers:
            worker.finish()


def test_asynchronous_workers_lose_no_change() -> None:
    """Two workers at their own speeds: in the end the weights are the first ones plus all changes."""
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        tensors = [torch.zeros(30_000, dtype=torch.float64) for _ in workers]
        for worker, tensor in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of([tensor], purpose="weights"))
        workers[0].start(0, tensors[0], seed=True).wait()

        def run(rank: int, steps: int) -> None:
            for _ in range(steps):
                tensors[rank].fill_(rank + 1.0)
                workers[rank].start(0, tensors[rank]).wait()

        threads = [threading.Thread(target=run, args=(rank, (20, 7)[rank])) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        tensors[0].zero_()
        workers[0].start(0, tensors[0]).wait()
        assert torch.equal(tensors[0], torch.full((30_000,), 20 * 1.0 + 7 * 2.0, dtype=torch.float64))
        for worker in workers:
            worker.finish()


def _train(rank: int, _size: int) -> Any:
    from pace.runtime.torch import AllReduce
    from pace_servers.runtime import ParameterServers, asynchronous

    def run(staleness: int | None, *, uneven: bool) -> tuple[Weights, Weights, bool]:
        model = build("conv", double=True)
        first = weights(model)
        inner = torch.optim.SGD(trainable(model), lr=0.05)
        optimizer = asynchronous(
            inner, model, staleness=staleness, op="sum" if uneven else "average", timeout_s=60.0
        )
        changes = {name: np.zeros_like(value) for name, value in first.items()}
        for batch in batches("conv", STEPS, rank, double=True):
            optimizer.zero_grad()
            backward(model(*batch))
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                changes[name] -= 0.05 * parameter.grad.numpy()
            if uneven:
                time.sleep(0.01 * rank)
            optimizer.step()
        optimizer.synchronize()
        trained = weights(model)
        optimizer.close()
        return trained, changes, isinstance(optimizer, torch.optim.Optimizer)

    refused = []
    wrongs: tuple[dict[str, Any], ...] = (
        {"staleness": -1},
        {"communication": ParameterServers(compression="fp16")},
        {"mode": "overlap"},
        {"communication": ParameterServers(servers=["10.0.0.1:7070"])},
        {"communication": AllReduce()},
    )
    for wrong in wrongs:
        model = build("conv")
        try:
            asynchronous(torch.optim.SGD(trainable(model), lr=0.1), model, timeout_s=20.0, **wrong)
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    return run(0, uneven=False), run(2, uneven=True), run(None, uneven=True), refused


def test_training_without_waiting_for_all() -> None:
    """With a staleness of 0, plain synchronous SGD; otherwise the first weights plus all changes."""
    ranks = run_ranks(_train, SIZE)
    expected = train_plainly_with_sgd()
    for rank in range(SIZE):
        assert difference(ranks[rank][0][0], expected) < 1e-12
        assert ranks[rank][0][2]
    first = weights(build("conv", double=True))
    for which in (1, 2):
        trained = [ranks[rank][which][0] for rank in range(SIZE)]
        assert all(equal_bits(trained[0], other) for other in trained[1:])
        total = {
            name: first[name] + sum(ranks[rank][which][1][name] for rank in range(SIZE)) for name in first
        }
        assert difference(trained[0], total) < 1e-9
    for refused in (ranks[rank][3] for rank in range(SIZE)):
        assert "staleness is -1; a whole number of at least 0" in refused[0]
        assert "compression is 'fp16'" in refused[1]
        assert "mode says when synchronous updates" in refused[2]
        assert "10.0.0.1:7070 is on another machine: give a token" in refused[3]
        assert "ParameterServers() is needed" in refused[4]
        assert all(each.startswith("InvalidOptions") for each in refused)


def train_plainly_with_sgd() -> Weights:
    """Plain synchronous SGD on all ranks' batches, in one process."""
    from tests.runtime import training

    training.OPTIMIZERS["plain-sgd"] = lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    try:
        return train_plainly(Case(model="conv", optimizer="plain-sgd", steps=STEPS, double=True), SIZE)
    finally:
        del training.OPTIMIZERS["plain-sgd"]


def _end_one(rank: int, _size: int) -> str:
    from pace_servers.runtime import asynchronous

    model = build("conv")
    with (
        contextlib.suppress(ZeroDivisionError),
        asynchronous(torch.optim.SGD(trainable(model), lr=0.05), model, timeout_s=60.0) as optimizer,
    ):
        for step, batch in enumerate(itertools.cycle(batches("conv", STEPS, rank))):
            optimizer.zero_grad()
            backward(model(*batch))
            try:
                optimizer.step()
            except CommunicationFailed as error:
                return str(error)
            if rank == 1 and step == 3:
                raise ZeroDivisionError
    return ""


def test_an_exception_on_one_rank_ends_the_others_training() -> None:
    """They would go on without what it had left to learn from; who closes in order does not end them."""
    assert all("rank 1" in said for rank, said in enumerate(run_ranks(_end_one, SIZE)) if rank != 1)
