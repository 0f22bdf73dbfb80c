"""Ranks that die or stop in training over parameter servers: an error on all others, and nothing left."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import Outcome, try_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import OPTIMIZERS, backward, meet, trainable, wrap

pytestmark = pytest.mark.races_with_machine(
    reason="survivors must name the lost rank within a time-out of seconds"
)

SIZE = 3
TIMEOUT_S = 8.0


def _fail_at_third_step(rank: int, _size: int, how: str, victim: int, servers: Any) -> Any:
    model = build("conv")
    shares = batches("conv", 6, rank)
    meet("gloo")
    threads = {thread.ident for thread in threading.enumerate()}
    optimizer = wrap(
        "gloo",
        OPTIMIZERS["sgd"](trainable(model)),
        model,
        timeout_s=TIMEOUT_S,
        over="servers",
        servers=servers,
    )
    start = time.monotonic()
    try:
        for step, batch in enumerate(shares):
            if step == 2 and rank == victim:
                os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            optimizer.zero_grad()
            backward(model(*batch))
            start = time.monotonic()
            optimizer.step()
        optimizer.synchronize()
    except Exception as error:
        took_s = time.monotonic() - start
        optimizer.close()
        deadline = time.monotonic() + 15
        left = None
        while left is None or (left and time.monotonic() < deadline):
            left = [t.name for t in threading.enumerate() if t.ident not in threads]
            time.sleep(0.05)
        return type(error).__name__, str(error), left, took_s
    return None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_rank_and_its_server_are_named(how: str) -> None:
    """The victim is a worker and a server at once; the others end well before the time-out would."""
    victim = 1
    outcomes = try_ranks(_fail_at_third_step, SIZE, how, victim, "colocated", expect_lost=[victim])
    _check_survivors(outcomes, victim)


@pytest.mark.slow
def test_a_lost_rank_is_named_by_servers_that_live_on() -> None:
    """Nothing can be made up for where a rank is lost: the others end as well."""
    with served(1) as (servers, _):
        outcomes = try_ranks(_fail_at_third_step, SIZE, "kill", 1, servers, expect_lost=[1])
    _check_survivors(outcomes, 1)


def _check_survivors(outcomes: list[Outcome], victim: int) -> None:
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.result is not None, outcome.output
        kind, message, threads, _took_s = outcome.result
        assert kind == "CommunicationFailed"
        assert f"rank {victim} " in message.split(":", 1)[1]
        others = [rank for rank in range(SIZE) if rank not in (victim, outcome.rank)]
        assert not any(f"rank {rank} is gone" in message for rank in others)
        assert threads == []
