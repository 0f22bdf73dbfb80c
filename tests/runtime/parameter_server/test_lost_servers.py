"""Servers of their own that die or stop while ranks train with them."""

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from pace.runtime.torch import DistributedOptimizer, Stale
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.parameter_server.server_processes import served
from tests.runtime.parameter_server.test_asynchronous_training import STEPS, train_plainly_with_sgd
from tests.runtime.training import (
    OPTIMIZERS,
    Weights,
    backward,
    difference,
    equal_bits,
    meet,
    trainable,
    wrap,
)

pytestmark = pytest.mark.races_with_machine(
    reason="survivors must tell a lost server from a busy one within seconds"
)

SIZE = 3
TIMEOUT_S = 40.0


def _leftover_threads(before: set[int | None]) -> list[str]:
    deadline = time.monotonic() + 20
    left: list[str] = ["unknown"]
    while left and time.monotonic() < deadline:
        left = [thread.name for thread in threading.enumerate() if thread.ident not in before]
        time.sleep(0.05)
    return left


def _synchronous(rank: int, servers: list[str], pid: int, number: int) -> tuple[str, list[str]]:
    """Lose a server at the third step."""
    before = {thread.ident for thread in threading.enumerate()}
    model = build("conv")
    optimizer = wrap(
        "gloo",
        OPTIMIZERS["sgd"](trainable(model)),
        model,
        backend="ps",
        servers=servers,
        timeout_s=TIMEOUT_S,
    )
    message = ""
    try:
        for step, batch in enumerate(batches("conv", 6, rank)):
            if step == 2 and rank == 0:
                os.kill(pid, number)
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.synchronize()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    optimizer.close()
    return message, _leftover_threads(before)


def _without_waiting(
    rank: int, servers: list[str], pid: int, consistency: Any
) -> tuple[Weights, int, list[str]]:
    """Lose a server in the middle, and go on with the other one."""
    before = {thread.ident for thread in threading.enumerate()}
    model = build("conv", double=True)
    inner = torch.optim.SGD(trainable(model), lr=0.05)
    optimizer = DistributedOptimizer(
        inner, model, backend="ps", servers=servers, consistency=consistency, timeout_s=TIMEOUT_S
    )
    for step, batch in enumerate(batches("conv", STEPS, rank, double=True)):
        optimizer.zero_grad()
        backward(model(*batch))
        if step == 2 and rank == 1:
            os.kill(pid, signal.SIGKILL)
        optimizer.step()
    optimizer.synchronize()
    found = weights(model), optimizer._transport.num_servers
    optimizer.close()
    return *found, _leftover_threads(before)


# The first server of each job holds the model, which is one segment.
def _live(rank: int, _size: int, servers: list[str], pids: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    meet("gloo")
    found["killed"] = _synchronous(rank, servers[:2], pids[0], signal.SIGKILL)
    found["stopped"] = _synchronous(rank, servers[1:3], pids[1], signal.SIGSTOP)
    found["bulk"] = _without_waiting(rank, servers[3:5], pids[3], Stale(0))
    found["async"] = _without_waiting(rank, servers[4:6], pids[4], "async")
    return found


@pytest.mark.slow
def test_lost_servers_end_synchronous_training_and_nothing_else() -> None:
    """Synchronous jobs raise an error that names the server; others go on with the servers that are left.

    Under Stale(0) with the weights of plain training, as if nothing had happened.
    """
    with served(6) as (servers, pids):
        ranks = run_ranks(_live, SIZE, servers, pids, timeout_s=280)
    expected = train_plainly_with_sgd()
    for found in ranks:
        for how, server in (("killed", servers[0]), ("stopped", servers[1])):
            message, left = found[how]
            assert message.startswith("CommunicationFailed"), message
            assert server in message
            assert left == []
        for how in ("bulk", "async"):
            trained, num_servers, left = found[how]
            assert num_servers == 1
            assert left == []
            assert equal_bits(trained, ranks[0][how][0])
        assert difference(found["bulk"][0], expected) < 1e-12
        assert difference(found["async"][0], expected) < 1.0
