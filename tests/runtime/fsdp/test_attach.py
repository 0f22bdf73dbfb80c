"""Under ``fully_shard`` on replicas of shards: every way to use it trains as without PACE, or is refused."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from pace.errors import InvalidUse
from pace.runtime.control.parameters import gradient_sizes
from tests.runtime.attached_loops import check_refused, compare, in_memory
from tests.runtime.fsdp.job import Job
from tests.runtime.fsdp.loops import COMPILED, LOOPS, ROUNDED, TRIED
from tests.runtime.fsdp.refusals import REFUSALS
from tests.runtime.logs import captured_events
from tests.runtime.loop_differences import check
from tests.runtime.rank_pool import Failed, RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Two replicas of two shards, that stay for all loops."""
    with RankPool(4) as ranks:
        yield ranks


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops_train_as_without_pace(pool: RankPool, loop: Callable[[Job], None]) -> None:
    """Weights, gradients, checkpoints and learning rates have the same bits."""
    check(pool.run(compare, Job, [loop], ROUNDED, TRIED))


@pytest.mark.slow
def test_compiled_models_train_as_without_pace(pool: RankPool) -> None:
    """Compiled inside of ``fully_shard``, and around it."""
    check(pool.run(compare, Job, COMPILED, ROUNDED, TRIED))


def test_what_would_train_otherwise_is_refused(pool: RankPool) -> None:
    """Each refusal says what, before anything is trained otherwise than by torch."""
    check_refused(pool, REFUSALS)


def checked(rank: int) -> tuple[int, str]:
    """Train in check mode, then read a shard past its guard; return the safe steps, and the error."""
    job = Job(rank, attach=True, mode="check")
    model, optimizer = job.begin()
    job.train(model, optimizer, 3)
    job.see(model.state_dict())
    steps = job.handle.report().checked_steps
    try:
        job.train(model, optimizer, 1)
        in_memory(next(model.parameters()))
    except InvalidUse as error:
        return steps, str(error)
    finally:
        job.handle.close()
    return steps, ""


def test_check_mode_names_the_use_of_a_shard(pool: RankPool) -> None:
    """A shard that is read without the guard of its parameter; steps before are safe."""
    for found in pool.run(checked):
        assert not isinstance(found, Failed), found.reason
        steps, said = found
        assert steps == 3
        assert "aten.clone.default uses first.weight past PACE's guards" in said


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
        assert "pace.memory_shared" not in events  # torch's own tensors of the shards' memory are none
        assert without == 0.0
        assert waited_s > 0.0


def size_up(rank: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes that the runtime counts for each parameter, and those that this rank has of it."""
    model = Job(rank, attach=False).wrapped()
    parameters = dict(model.named_parameters())
    counted = {size.name: size.size_bytes for size in gradient_sizes(parameters)}
    return counted, {name: each.to_local().numel() * 4 for name, each in parameters.items()}


def test_sizes_are_those_of_the_largest_shard(pool: RankPool) -> None:
    """So that one schedule fits all shards, where the last is smaller, or empty."""
    ranks = pool.results(size_up)
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
