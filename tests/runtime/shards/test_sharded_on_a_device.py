"""Sharded updates on a simulated GPU, which runs behind the host, over real Gloo."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.runtime.engine.queued_device import simulate_gpu
from tests.runtime.launch import run_ranks, try_ranks
from tests.runtime.loops.beside_plain import assert_same_training
from tests.runtime.loops.loop_run import Run
from tests.runtime.loops.test_loops_on_a_device import run_on_device
from tests.runtime.models import batches, build, weights
from tests.runtime.rank_pool import RankPool
from tests.runtime.shards import test_sharded_checkpoints as checkpoints
from tests.runtime.shards import test_sharded_failures as failures
from tests.runtime.shards import test_sharded_weights as on_cpu
from tests.runtime.shards.jobs import train_by_shards, train_with_ddp_and_clip
from tests.runtime.training import OPTIMIZERS, backward, difference, equal_bits, trainable, wrap

WRAPS = 50


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks of these tests alone: their wrappers take every model for one on a GPU."""
    with RankPool(request.param, timeout_s=100) as ranks:
        yield ranks


def _beside(rank: int) -> list[Any]:
    found = []
    for name, max_norm in (("sgd", None), ("adamw", 0.05), ("adam", 1.5), ("nadam", 0.05)):
        plain = train_by_shards(rank, "gloo", "conv", name, steps=8, max_norm=max_norm)
        found.append((name, plain, train_with_ddp_and_clip(rank, "conv", name, steps=8, max_norm=max_norm)))
    return found


def _behind(rank: int) -> list[Any]:
    simulate_gpu(rank)
    return _beside(rank)


def test_training_on_a_device_equals_ddp_with_torchs_clipping(pool: RankPool) -> None:
    """With and without clipping: the weights and norms of DDP, and the same bits on all ranks."""
    ranks = pool.results(_behind)
    for number, (name, (ours, norms), (theirs, expected)) in enumerate(ranks[0]):
        assert difference(ours, theirs) <= 1e-8, name
        np.testing.assert_allclose(norms, expected, rtol=1e-6, err_msg=name)
        assert all(equal_bits(ours, other[number][1][0]) for other in ranks), name


def _steps(rank: int, what: str) -> Any:
    simulate_gpu(rank)
    return getattr(on_cpu, what)(rank, *(["gloo"] if what == "_state" else []))


def test_state_is_a_share_that_one_rank_can_save(pool: RankPool) -> None:
    """Rank 0 saves alone while the others go on."""
    for _, mine, elements, whole, inner, after_close in pool.results(_steps, "_state"):
        assert 3 * 8 * elements / pool.size * 0.85 < mine < 3 * 8 * elements / pool.size * 1.15
        assert whole == 3 * 8 * elements
        assert inner == 0
        assert after_close > 0


def test_a_gradient_that_is_not_finite_skips_the_step_on_all(pool: RankPool) -> None:
    """The device takes the update back, and the host the step counts, an iteration later."""
    for found in pool.results(_steps, "_overflow"):
        for seen, steps in found[:2]:
            assert equal_bits(seen[1], seen[2])
            assert not equal_bits(seen[2], seen[3])
            assert all(np.isfinite(value).all() for value in seen[3].values())
            assert steps == {3}


def test_what_would_go_wrong_is_refused_on_every_rank(pool: RankPool) -> None:
    """Gradients read when no rank has them, ranks that clip or clear differently."""
    for read, clipped, cleared in pool.results(_steps, "_misuse"):
        assert "was read after step()" in read
        assert "InvalidUse: ranks have clipped or unscaled their gradients differently" in clipped
        assert "was cleared on some ranks but not on others" in cleared


def test_every_way_of_clipping_gives_the_same_weights(pool: RankPool) -> None:
    """``max_grad_norm`` and torch's own function, which gathers gradients."""
    for found, expected in pool.results(_steps, "_clip_at_step"):
        assert all(difference(each, expected) <= 1e-8 for each in found)


def _one_element_overflows(run: Run) -> None:
    for fused in (False, True):
        model = run.build(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
        inner = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        optimizer = run.wrap(inner, model, sharding="on")
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        for step in range(run.steps):
            optimizer.zero_grad()
            first = torch.ones(3, dtype=torch.float64)
            if step == 2 and run.rank == run.size - 1:
                first[0] = float("inf")
            bias: Any = model[0].bias
            hook = bias.register_hook(functools.partial(torch.mul, first))
            scaler.scale(model(run.batch(step, 2, 4)).sum()).backward()
            hook.remove()
            run.average(model)
            scaler.step(optimizer)
            scaler.update()
            run.see(scaler.get_scale(), list(model.parameters()))


def test_an_overflow_in_one_ranks_row_skips_the_step_on_all(pool: RankPool) -> None:
    """Torch's scaler checks each rank's rows on the device, and its scale must be the same on all ranks."""
    assert_same_training(pool, pool, _one_element_overflows, run_on_device, steps=6)


def _wrap_often(rank: int, size: int) -> Any:
    simulate_gpu(rank)
    model = build("conv", double=True)
    inner = OPTIMIZERS["adamw"](trainable(model))
    shared = batches("conv", 2 * WRAPS, rank, double=True)
    for number in range(WRAPS):
        group: Any = dist.new_group(list(range(size))) if number % 2 else None
        optimizer = wrap("gloo", inner, model, sharding="on", timeout_s=20.0, process_group=group)
        for batch in shared[2 * number : 2 * number + 2]:
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.close()
        inner.zero_grad()
        if group is not None:
            dist.destroy_process_group(group)
    return weights(model), train_with_ddp_and_clip(rank, "conv", "adamw", steps=2 * WRAPS, max_norm=None)[0]


def test_a_model_is_wrapped_fifty_times_in_one_process() -> None:
    """Parameters and state go into shards and come back each time, over the job's group and over others."""
    for ours, expected in run_ranks(_wrap_often, 2):
        assert difference(ours, expected) <= 1e-8


def _checkpoint(rank: int, size: int, what: str, folder: str) -> Any:
    simulate_gpu(rank)
    return getattr(checkpoints, what)(rank, size, folder)


@pytest.mark.slow
def test_three_ranks_write_and_two_go_on_alike(tmp_path: Path) -> None:
    """``sharded_state()`` waits for updates that the device has not computed, and goes into other shards."""
    saved = run_ranks(_checkpoint, 3, "_save", str(tmp_path))
    resumed = run_ranks(_checkpoint, 2, "_resume", str(tmp_path))
    for number, name in enumerate(checkpoints.NAMES):
        assert difference(resumed[0][number], saved[0][number]) <= 1e-8, name
        assert equal_bits(resumed[0][number], resumed[1][number]), name


def _lose_a_rank(rank: int, size: int, where: str) -> Any:
    simulate_gpu(rank)
    return failures._lose_a_rank(rank, size, where, "gloo")


@pytest.mark.slow
@pytest.mark.races_with_machine(reason="survivors must name the lost rank within a time-out of seconds")
@pytest.mark.parametrize("where", ["before the norm", "between the halves"])
def test_a_killed_rank_is_an_error_on_the_others(where: str) -> None:
    """The host has queued calls that will never end: the others raise, name the rank, leave no thread."""
    outcomes = try_ranks(_lose_a_rank, failures.SIZE, where, expect_lost=[1])
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.result is not None, outcome.output
        kind, message, left = outcome.result
        assert kind == "CommunicationFailed"
        assert "rank 1 " in message.split(":", 1)[1]
        assert left == []
