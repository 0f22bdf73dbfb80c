"""What everyday loops look at and the weights they end with, beside the same loops without the runtime."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from tests.runtime.launch import run_ranks
from tests.runtime.loops import everyday_loops
from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import backward, wrap

MODES = ("overlap", "barrier", "auto")


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Two ranks over Gloo that stay for all loops."""
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def horovod() -> Iterator[RankPool]:
    """Two ranks over Horovod."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    with RankPool(2, backend="horovod") as pool:
        yield pool


@pytest.mark.parametrize("mode", MODES)
def test_clipping_sees_what_other_ranks_experts_have(gloo: RankPool, mode: str) -> None:
    """A parameter that one rank alone uses has the same reduced gradient, read and clipped, on every rank."""
    assert_trains_as_plainly(gloo, everyday_loops.clipped_experts, mode=mode)
    assert_trains_as_plainly(gloo, everyday_loops.scaled_experts, mode=mode)


@pytest.mark.horovod
def test_clipping_sees_what_other_ranks_experts_have_over_horovod(gloo: RankPool, horovod: RankPool) -> None:
    """The same over Horovod."""
    for loop in (everyday_loops.clipped_experts, everyday_loops.scaled_experts):
        assert_trains_as_plainly(gloo, loop, under=horovod, mode="overlap")


@pytest.mark.parametrize("mode", MODES)
def test_reading_does_not_wait_for_an_unused_layer(gloo: RankPool, mode: str) -> None:
    """A layer that no rank uses has no gradient, is left alone, and holds up nobody who reads another's."""
    assert_trains_as_plainly(gloo, everyday_loops.unused_layer_read, steps=4, mode=mode, timeout_s=60.0)


@pytest.mark.horovod
def test_reading_does_not_wait_for_an_unused_layer_over_horovod(gloo: RankPool, horovod: RankPool) -> None:
    """The same over Horovod."""
    loop = everyday_loops.unused_layer_read
    assert_trains_as_plainly(gloo, loop, under=horovod, steps=4, mode="overlap", timeout_s=60.0)


@pytest.mark.parametrize("mode", MODES)
def test_fewer_passes_than_announced_are_reduced_before_they_are_read(gloo: RankPool, mode: str) -> None:
    """Clipping and loss scaling at the odd end of an epoch work on reduced gradients."""
    assert_trains_as_plainly(gloo, everyday_loops.fewer_passes_than_announced, mode=mode)
    assert_trains_as_plainly(gloo, everyday_loops.fewer_passes_scaled, mode=mode)


@pytest.mark.horovod
def test_fewer_passes_than_announced_are_reduced_over_horovod(gloo: RankPool, horovod: RankPool) -> None:
    """The same over Horovod."""
    for loop in (everyday_loops.fewer_passes_than_announced, everyday_loops.fewer_passes_scaled):
        assert_trains_as_plainly(gloo, loop, under=horovod, mode="overlap")


@pytest.mark.parametrize("mode", MODES)
def test_fused_optimizers_unscale_and_skip_overflows(gloo: RankPool, mode: str) -> None:
    """All four fused optimizers of torch under a loss scaler, with an overflow on one rank."""
    assert_trains_as_plainly(gloo, everyday_loops.scaled_fused, steps=6, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_fused_optimizers_update_strided_parameters(gloo: RankPool, mode: str) -> None:
    """Channels last and transposed parameters, which lie in memory otherwise than their shapes say."""
    assert_trains_as_plainly(gloo, everyday_loops.strided_fused, steps=6, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_two_networks_train_one_another(gloo: RankPool, mode: str) -> None:
    """A GAN in its most ordinary form, through all of the trial's turns."""
    assert_trains_as_plainly(gloo, everyday_loops.two_networks, steps=30, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_frozen_layers_stay_until_they_thaw(gloo: RankPool, mode: str) -> None:
    """A layer frozen in mid-training does not move, by weight decay or momentum either."""
    assert_trains_as_plainly(gloo, everyday_loops.frozen_later, steps=26, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_with_other_memory_are_cleared(gloo: RankPool, mode: str) -> None:
    """The next gradients, which clipping reads, are the new ones."""
    assert_trains_as_plainly(gloo, everyday_loops.gradients_moved, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_views_of_gradients_outlive_their_replacement(gloo: RankPool, mode: str) -> None:
    """They keep the values that the replaced gradients had, as without PACE."""
    assert_trains_as_plainly(gloo, everyday_loops.views_of_replaced_gradients, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_hooks_of_a_step_change_weights_and_gradients(gloo: RankPool, mode: str) -> None:
    """Before a closure runs, as in torch; and what they assign stays the gradient."""
    assert_trains_as_plainly(gloo, everyday_loops.hooks_before_closures, mode=mode)
    assert_trains_as_plainly(gloo, everyday_loops.hooks_replace_gradients, mode=mode)


def _train_in_ddp(_rank: int, _size: int) -> list[str]:
    reasons = []
    model = nn.Linear(4, 1)
    parallel = nn.parallel.DistributedDataParallel(model)
    for given in (parallel, nn.Sequential(parallel)):
        try:
            wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), given)
        except InvalidOptions as error:
            reasons.append(str(error))
    for mode in MODES:
        optimizer = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), model, mode=mode)
        try:
            backward(parallel(torch.ones(1, 4)).sum())
        except InvalidUse as error:
            reasons.append(str(error))
        optimizer.close()
    return reasons


def test_a_model_in_ddp_is_refused_on_every_rank() -> None:
    """Given in DistributedDataParallel, as a part of the model too, or put into it later: an error."""
    for reasons in run_ranks(_train_in_ddp, 2):
        assert len(reasons) == 2 + len(MODES)
        assert all("DistributedDataParallel, which" in reason for reason in reasons)
