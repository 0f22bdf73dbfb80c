"""Under ``fully_shard`` on replicas of shards: every way to use it trains as without PACE, or is refused."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.options import Mode
from tests.runtime.fsdp.job import Job
from tests.runtime.fsdp.loops import COMPILED, LOOPS, ROUNDED, TRIED
from tests.runtime.fsdp.refusals import REFUSALS, refused
from tests.runtime.logs import captured_events
from tests.runtime.loop_differences import check, differences
from tests.runtime.rank_pool import Failed, RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Two replicas of two shards, that stay for all loops."""
    with RankPool(4) as ranks:
        yield ranks


def compare(rank: int, names: Sequence[str]) -> dict[str, list[str]]:
    """Run loops on this rank with and without PACE; return the differences of each."""
    loops = {loop.__name__: loop for loop in (*LOOPS, *COMPILED)}
    found = {}
    for name in names:
        without = finished(Job(rank, attach=False), loops[name])
        near = 1e-6 if loops[name] in ROUNDED else 0.0
        modes: tuple[Mode, ...] = ("overlap", "auto") if loops[name] in TRIED else ("overlap",)
        for mode in modes:
            with_pace = finished(Job(rank, attach=True, mode=mode), loops[name])
            found[f"{name} {mode}"] = list(differences(with_pace, without, near))
    return found


def finished(job: Job, loop: Callable[[Job], None]) -> list[Any]:
    """Run a loop; return what it saw."""
    torch.manual_seed(11)
    loop(job)
    return job.end()


@pytest.mark.parametrize("loop", [loop.__name__ for loop in LOOPS])
def test_loops_train_as_without_pace(pool: RankPool, loop: str) -> None:
    """Weights, gradients, checkpoints and learning rates have the same bits."""
    check(pool.run(compare, [loop]))


@pytest.mark.slow
def test_compiled_models_train_as_without_pace(pool: RankPool) -> None:
    """Compiled inside of ``fully_shard``, and around it."""
    check(pool.run(compare, [loop.__name__ for loop in COMPILED]))


def test_what_would_train_otherwise_is_refused(pool: RankPool) -> None:
    """Each refusal says what, before anything is trained otherwise than by torch."""
    for each in pool.run(refused):
        assert not isinstance(each, Failed), each.reason
        assert each.keys() == {refusal.__name__ for refusal, _ in REFUSALS}
        for refusal, words in REFUSALS:
            kind, message = each[refusal.__name__]
            assert kind in ("InvalidUse", "InvalidOptions"), (refusal.__name__, kind, message)
            assert words in message, (refusal.__name__, message)


def clip(rank: int) -> tuple[list[str], float, float]:
    """Train with and without clipping; return what is logged, and how long reads waited in both."""
    waited = []
    with captured_events() as events:
        for clipping in (False, True):
            job = Job(rank, attach=True)
            model, optimizer = job.begin()
            for step in range(3):
                optimizer.zero_grad()
                job.backward(model, step)
                if clipping:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            waited.append(job.handle.report().read_wait_s)
            job.handle.close()
    return [each["event"] for each in events], waited[0], waited[1]


def test_what_clipping_costs_is_in_the_report_and_said_once(pool: RankPool) -> None:
    """One rank says that updates wait for all sums; every rank counts for how long."""
    for rank, found in enumerate(pool.run(clip)):
        assert not isinstance(found, Failed), found.reason
        events, without, waited_s = found
        assert events.count("pace.waits_for_gradients") == (rank == 0)
        assert without == 0.0
        assert waited_s > 0.0


def size_up(rank: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes that the runtime counts for each parameter, and those that this rank has of it."""
    model = Job(rank, attach=False).sharded()
    parameters = dict(model.named_parameters())
    counted = {size.name: size.size_bytes for size in gradient_sizes(parameters)}
    return counted, {name: each.to_local().numel() * 4 for name, each in parameters.items()}


def test_sizes_are_those_of_the_largest_shard(pool: RankPool) -> None:
    """So that one schedule fits all shards, where the last is smaller, or empty."""
    ranks = pool.run(size_up)
    assert not any(isinstance(each, Failed) for each in ranks), ranks
    held = [own for _, own in ranks]
    largest = {name: max(own[name] for own in held) for name in held[0]}
    assert all(counted == largest for counted, _ in ranks)
    assert min(own["blocks.0.scale"] for own in held) == 0


def drop(rank: int) -> tuple[bool, bool, bool]:
    """Keep nothing of what ``attach`` returned; then drop the model."""
    job = Job(rank, attach=True)
    model, optimizer = job.begin()
    handle = weakref.ref(job.handle)
    job.handle = None
    job.train(model, optimizer, 2)
    gc.collect()
    kept = handle() is not None
    job.model = None
    del model, optimizer
    deadline = time.monotonic() + 20
    while handle() is not None and time.monotonic() < deadline:  # while another thread calls it, it lives
        gc.collect()
    return kept, handle() is None, "grad" in vars(torch.nn.Parameter)


def test_a_wrapper_lives_as_long_as_the_model(pool: RankPool) -> None:
    """Whoever keeps what ``attach`` returned; and no longer."""
    for found in pool.run(drop):
        assert not isinstance(found, Failed), found.reason
        assert found == (True, True, False)
