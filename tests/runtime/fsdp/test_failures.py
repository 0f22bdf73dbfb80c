"""A rank that is lost, whatever its replica and shard, is named in an error on every other rank."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

from pace.runtime.fsdp import attach
from tests.runtime.fsdp.job import Job, mesh_of
from tests.runtime.launch import Outcome, run_ranks, try_jobs, try_ranks

Loss = Literal["stop", "kill"]

SIZE = 4
TIMEOUT_S = 4.0
# Nobody is lost before the second step, and all train on until they are told.
FIRST_STEPS = 2
STEPS = 100_000

# Generous: what is tested is that survivors do end by themselves, and not in torch's half hour.
ENDED_S = 120.0

NAMED = pytest.mark.races_with_machine(
    reason="survivors must name the lost rank within a time-out of seconds", fixtures=("outcomes",)
)

# A time-out is waited out where a rank stops: of one that gathers ahead, and one that does not.
LOST_AT_RANDOM: list[tuple[int, Loss]] = [(0, "kill"), (1, "kill"), (2, "kill"), (0, "stop"), (3, "stop")]
LOST_IN_PASS = [
    ("stop", "forward", "the all-gather of "),
    ("stop", "ahead", "the all-gather of "),
    ("stop", "backward", "the reduce-scatter of "),
    ("kill", "backward", "the reduce-scatter of "),
]
LATE = ("late", "forward")


def _lose(how: Loss) -> None:
    os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)


def _loop(job: Job, *, ahead: bool) -> tuple[Any, Any]:
    """Make a sharded model; with `ahead`, gatherings are begun before their turn."""
    model = job.wrapped()
    if ahead:
        model._set_unshard_async_op(True)
        for block, following in zip(model.blocks, list(model.blocks)[1:], strict=False):
            block.set_modules_to_forward_prefetch([following])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    job.handle = attach(model, optimizer, mode="overlap", timeout_s=TIMEOUT_S)
    return model, optimizer


def _end(job: Job, error: Exception) -> str:
    job.handle.__exit__(type(error), error, None)
    return f"{type(error).__name__}: {error}"


def _lose_at_random(rank: int, _size: int, victim: int, how: Loss, after_s: float, ahead: bool) -> str | None:
    job = Job(rank, attach=False)
    model, optimizer = _loop(job, ahead=ahead)
    try:
        for step in range(STEPS):
            if step == FIRST_STEPS and rank == victim:
                threading.Timer(after_s, _lose, [how]).start()
            optimizer.zero_grad()
            job.backward(model, step)
            if step % 2:
                job.handle.clip_grad_norm_(1.0)
            optimizer.step()
    except Exception as error:
        return _end(job, error)
    return None


def _expect_named(outcomes: list[Outcome], victim: int, how: str) -> list[str]:
    said = []
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.returned, (how, outcome.message, outcome.output)
            assert outcome.result is not None, (how, outcome.output)
            kind, message, cause = outcome.result.split(":", 2)
            assert kind == "CommunicationFailed", (how, outcome.result, outcome.output)
            assert f"rank {victim} of the whole job" in cause, (how, outcome.result)
            said.append(f"{message}:{cause}")
    return said


def _lose_in_pass(rank: int, _size: int, victim: int, how: str, where: str) -> str | None:
    job = Job(rank, attach=False)
    model, optimizer = _loop(job, ahead=where == "ahead")

    def act() -> None:
        if how == "late":
            time.sleep(2 * TIMEOUT_S)
        else:
            _lose("stop" if how == "stop" else "kill")

    def act_in_backward(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda _: act())  # type: ignore[no-untyped-call]  # torch gives it no types

    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            if (rank, step) == (victim, FIRST_STEPS) and where != "backward":
                act()
            if (rank, step) == (victim, FIRST_STEPS) and where == "backward":
                # The last of the blocks in the backward pass: nothing is left to be gathered.
                model.blocks[0].wide.register_forward_hook(act_in_backward)
            output = model(job.batch(step))
            output.pow(2).mean().backward()
            optimizer.step()
    except Exception as error:
        return _end(job, error)
    return None


@pytest.fixture(scope="module")
def outcomes() -> dict[Any, list[Outcome]]:
    """How the ranks of all jobs ended."""
    jobs: dict[Any, Callable[[], list[Outcome]]] = {}
    for victim, how in LOST_AT_RANDOM:
        after_s = random.random() * 0.3
        loss = (victim, how, after_s, bool(victim % 2))
        jobs[victim, how] = partial(
            try_ranks, _lose_at_random, SIZE, *loss, expect_lost=[victim], timeout_s=ENDED_S
        )
    for kind, where, _ in LOST_IN_PASS:
        jobs[kind, where] = partial(
            try_ranks, _lose_in_pass, SIZE, 3, kind, where, expect_lost=[3], timeout_s=ENDED_S
        )
    jobs[LATE] = partial(try_ranks, _lose_in_pass, SIZE, 3, *LATE, timeout_s=ENDED_S)
    return try_jobs(jobs)


@NAMED
@pytest.mark.slow
@pytest.mark.parametrize(("victim", "how"), LOST_AT_RANDOM)
def test_a_rank_lost_at_any_moment_is_named_by_every_other(
    outcomes: dict[Any, list[Outcome]], victim: int, how: Loss
) -> None:
    """Also by ranks that are neither its replicas nor its shards, and wait for ranks that wait for it."""
    _expect_named(outcomes[victim, how], victim, how)


@NAMED
@pytest.mark.slow
@pytest.mark.parametrize(("how", "where", "waiting"), LOST_IN_PASS)
def test_a_rank_that_waits_for_a_lost_one_in_the_same_replica_says_where(
    outcomes: dict[Any, list[Outcome]], how: str, where: str, waiting: str
) -> None:
    """Torch's own collectives have the wrapper's time-out, begun ahead of their turn or not."""
    said = _expect_named(outcomes[how, where], 3, how)
    assert waiting in said[2]
    assert "gives no sign of life" in said[2]


@NAMED
@pytest.mark.slow
def test_a_rank_that_is_alive_and_does_not_come_is_named(outcomes: dict[Any, list[Outcome]]) -> None:
    """It does something else for longer than the time-out: the others say what it has not begun."""
    for message in _expect_named(outcomes[LATE], 3, "late"):
        assert f"rank 3 of the whole job has not begun step {FIRST_STEPS + 1}" in message


def _attach_twice(rank: int, size: int) -> list[list[float]]:
    mesh = mesh_of(2)
    group = mesh.get_group("shards")
    backend: Any = group._get_backend(torch.device("cpu"))
    found: list[list[float]] = []

    def see() -> None:
        whole: Any = dist.group.WORLD
        backends = [backend, whole._get_backend(torch.device("cpu"))]
        found.append([each.options._timeout.total_seconds() for each in backends])

    see()
    handles = []
    for timeout_s in (50.0, 40.0, 7000.0):
        job = Job(rank, attach=False)
        model = job.wrapped(mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handles.append(attach(model, optimizer, timeout_s=timeout_s))
        job.train(model, optimizer, 1)
        see()
    for handle in (handles[1], handles[2], handles[0]):
        handle.close()
        see()
    job = Job(rank, attach=False)
    model = job.wrapped(mesh)
    handle = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), timeout_s=60.0)
    backend._set_default_timeout(timedelta(seconds=70))
    handle.close()
    see()
    assert size == SIZE
    dist.barrier()  # rank 0 has the store: others may still be connecting through it
    return found


def test_process_groups_get_their_own_time_out_back() -> None:
    """Of several wrappers the shortest holds, and none longer than the group's own; other groups keep it."""
    for found in run_ranks(_attach_twice, SIZE):
        own, others = found[0]
        shards = [own, 50, 40, 40, 50, 50, own, 70]
        assert found == [[each, others] for each in shards]
