"""Law 6: a dead, stopped, failing or different rank ends in an error on every other rank, never a hang."""

import os
import re
import signal
import threading
import time
from functools import partial
from typing import Any, cast

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.runtime.launch import Backend, Outcome, run_ranks, try_jobs, try_ranks
from tests.runtime.models import Batch, batches, build
from tests.runtime.programs import script
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import OPTIMIZERS, backward, meet, trainable, wrap

pytestmark = pytest.mark.races_with_machine(
    reason="survivors must name the lost rank within a time-out of seconds", fixtures=("lost",)
)

SIZE = 3
TIMEOUT_S = 4.0


def _hooks_of(model: Any) -> int:
    return sum(
        len(module._forward_pre_hooks) + (type(module._parameters) is not dict) for module in model.modules()
    ) + sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters())


def _interruptible(transport: str, how: str, victim: int) -> bool:
    """Whether threads can end: a call to a stopped rank's store, or to Horovod beside one, cannot."""
    return not (how == "stop" and (victim == 0 or transport == "horovod"))


def _fail_at_third_step(rank: int, _size: int, transport: str, how: str, victim: int) -> Any:
    model = build("conv")
    # With the first batch made, whatever torch starts once is started.
    shares: list[Batch] = batches("conv", 6, rank)
    meet(transport)
    threads = {thread.ident for thread in threading.enumerate()}
    optimizer = wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=TIMEOUT_S)
    try:
        for step, batch in enumerate(shares):
            if step == 2 and rank == victim:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                raise ValueError("this rank fails")
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.synchronize()
    except Exception as error:
        optimizer.close()
        deadline = time.monotonic() + (60 if _interruptible(transport, how, victim) else 0)
        left = None
        while left is None or (left and time.monotonic() < deadline):
            left = [t.name for t in threading.enumerate() if t.ident not in threads]
            time.sleep(0.05)
        return type(error).__name__, str(error), left, _hooks_of(model)
    return None


LOSSES = [(how, victim) for how in ("kill", "stop", "raise") for victim in (0, 1)]


@pytest.fixture(scope="module")
def lost(transport: str) -> dict[tuple[str, int], list[Outcome]]:
    """How all ranks ended, whatever was done to one of them."""
    return try_jobs(
        {
            (how, victim): partial(
                try_ranks,
                _fail_at_third_step,
                SIZE,
                transport,
                how,
                victim,
                backend=cast("Backend", transport),
                expect_lost=[victim] if how != "raise" else [],
                # Horovod's own exit waits for the stopped rank.
                environment={"LEAVE_AT_ONCE": "1"} if (transport, how) == ("horovod", "stop") else None,
            )
            for how, victim in LOSSES
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "victim"), LOSSES)
def test_every_survivor_is_told_group_and_rank(
    lost: dict[tuple[str, int], list[Outcome]], transport: str, how: str, victim: int
) -> None:
    """Killed, stopped or raising: the others raise, name the rank, and leave no thread or hook behind."""
    for outcome in lost[how, victim]:
        if outcome.rank == victim:
            continue
        assert outcome.result is not None, outcome.output
        kind, message, threads, hooks = outcome.result
        assert kind == "CommunicationFailed"
        # A rank that another was quicker to tell knows the lost rank, and did not wait for a group in vain.
        assert "group" in message or "training has ended on another rank" in message
        assert f"rank {victim} " in message.split(":", 1)[1]
        assert hooks == 0
        if _interruptible(transport, how, victim):
            assert threads == []


_DIFFERENCES = {
    "model": "rank 1 has another model than rank 0",
    "schedule": "rank 1 was given another schedule than rank 0",
    "world": "another number of workers than 2",
}


def _wrap_different(rank: int, size: int, transport: str, what: str) -> Any:
    model = build("recurrent" if what == "model" and rank == 1 else "conv")
    workers = size + 1 if what == "world" else size
    seed = rank if what == "schedule" else 0
    schedule = None if what == "model" else shuffled_schedule(model, workers, seed)
    try:
        wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model, schedule=schedule)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def _wrap_all_different(rank: int, size: int, transport: str) -> Any:
    said = {what: _wrap_different(rank, size, transport, what) for what in _DIFFERENCES}
    deadline = time.monotonic() + 60
    left = None
    while left is None or (left and time.monotonic() < deadline):
        left = [t.name for t in threading.enumerate() if t.name.startswith("pace")]
        time.sleep(0.05)
    return said, left


def test_ranks_that_differ_are_refused_before_the_first_step(transport: str) -> None:
    """Every rank gets an error that says which rank differs, or what does not fit; no thread is left."""
    for said, left in run_ranks(_wrap_all_different, 2, transport, backend=cast("Backend", transport)):
        for what, expected in _DIFFERENCES.items():
            assert said[what] is not None, what
            kind, message = said[what]
            assert kind == "ScheduleMismatch"
            assert expected in message
        assert left == []


def _leave_the_loop_early(rank: int, _size: int, transport: str) -> Any:
    meet(transport)
    model = build("conv")
    optimizer = wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=TIMEOUT_S)
    try:
        for batch in batches("conv", 3 if rank == 1 else 4, rank):
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.synchronize()
        meet(transport)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        optimizer.close()
    return None


@pytest.mark.slow
def test_a_rank_that_left_the_loop_early_is_named(transport: str) -> None:
    """It waits for the others elsewhere, alive: they say which step it has not begun."""
    ranks = run_ranks(_leave_the_loop_early, SIZE, transport, backend=cast("Backend", transport))
    for kind, message in (ranks[0], ranks[2]):
        assert kind == "CommunicationFailed"
        # A survivor that ends first ends Horovod's barrier, in which rank 1 waits: then rank 1 has left.
        assert re.search(
            "rank 1 has (not begun step 4|left the training after its step 3: let every)", message
        )
        assert "rank 0 has" not in message
        assert "rank 2 has" not in message


_SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.torch import DistributedOptimizer

rank, port = int(sys.argv[1]), int(sys.argv[2])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)
model = torch.nn.Linear(4, 4)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=20.0)
for step in range(4):
    if rank == 1 and step == 2:
        raise ZeroDivisionError("this rank fails")
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_an_uncaught_exception_is_told_to_the_others() -> None:
    """A script that ends by an exception says so as it goes: it has left, and why."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    with script(_SCRIPT, 0, store.port) as first, script(_SCRIPT, 1, store.port) as second:
        errors = [each.result().stderr for each in (first, second)]
    assert "ZeroDivisionError: this rank fails" in errors[1]
    assert "CommunicationFailed" in errors[0]
    assert "rank 1 has left the training (ZeroDivisionError)" in errors[0]
