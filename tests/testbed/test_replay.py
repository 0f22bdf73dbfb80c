"""A replayed profile is a true model: its times, its gradients, its names."""

from itertools import pairwise

import pytest
import torch

from benchmarks.harness.workload.replay import (
    LEARNING_RATE,
    TOLERANCE,
    Replay,
    directions_of,
    expected_weights,
    parameter_name,
    plan_replay,
    renamed,
    scale_of,
)
from pace.documents.profile import Profile
from pace.errors import InvalidProfile
from pace.models import build


def test_ops_become_stages(layered: Profile) -> None:
    """Every op's time lands in the stage whose gradient it makes or whose gradient it follows."""
    plan = plan_replay(layered)
    assert [stage.consumer for stage in plan.stages] == ["fwd/a", "fwd/b", "fwd/c"]
    assert [stage.backward_s for stage in plan.stages] == pytest.approx([0.002, 0.005, 0.005])
    assert [stage.forward_s for stage in plan.stages] == pytest.approx([0.001, 0.003, 0.002])
    assert (plan.forward_before_s, plan.backward_after_s) == pytest.approx((0.001, 0.001))


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "transformer", "inception-v3", "bert-large"])
def test_no_time_is_lost(name: str) -> None:
    """Stages and ends add up to the window, and gradients become ready when the profile says."""
    profile = build(name, device_tflops=5, batch=32, workers=4)
    plan = plan_replay(profile)
    total = sum(stage.backward_s + stage.forward_s for stage in plan.stages)
    assert total + plan.forward_before_s + plan.backward_after_s == pytest.approx(profile.timing.compute_s)
    ready = dict(zip((g.name for g in profile.gradients), profile.timing.ready_s, strict=True))
    tail = dict(zip((g.name for g in profile.gradients), profile.timing.tail_s, strict=True))
    now = 0.0
    for stage in reversed(plan.stages):
        now += stage.backward_s
        assert [ready[g.name] for g in stage.gradients] == pytest.approx([now] * len(stage.gradients))
    left = 0.0
    for stage in reversed(plan.stages):
        left += stage.forward_s
        assert [tail[g.name] for g in stage.gradients] == pytest.approx([left] * len(stage.gradients))


def test_gradients_are_those_of_the_loss(layered: Profile) -> None:
    """Autograd through the replay gives the same loss and gradients as the formula without it."""
    replay = Replay(layered, rank=3)
    loss = replay(torch.tensor([0.25]))
    loss.backward()
    own = dict(replay.named_parameters())
    twin = {g.name: own[replay.names[g.name]].detach().clone().requires_grad_() for g in layered.gradients}
    directions = directions_of(layered, 3)
    other = sum((p @ p) / 2 + 0.25 * (directions[name] @ p) for name, p in twin.items())
    assert isinstance(other, torch.Tensor)
    other.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, other)
    for name, parameter in twin.items():
        torch.testing.assert_close(own[replay.names[name]].grad, parameter.grad)


def test_a_scaled_loss_scales_gradients(layered: Profile) -> None:
    """The chain rule holds for whatever follows the replay."""
    once, twice = Replay(layered, rank=0), Replay(layered, rank=0)
    once(torch.tensor([0.5])).backward()
    (2 * twice(torch.tensor([0.5]))).backward()
    for one, two in zip(once.parameters(), twice.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(two.grad, 2 * one.grad)


def test_ops_run_in_the_profile_s_order_and_times(layered: Profile) -> None:
    """The stream is held for exactly the profile's durations, backward before the next forward."""
    replay = Replay(layered, rank=0)
    record: list[tuple[str, float, float]] = []
    replay.stream.record = record
    replay(torch.tensor([0.5])).backward()
    names = [op for op, _, _ in record]
    assert names == ["fwd", "fwd/a", "fwd/b", "fwd/c", "bwd/c", "bwd/b", "bwd/a", "bwd"]
    held = [ended - started for _, started, ended in record]
    assert held == pytest.approx([0.001, 0.001, 0.003, 0.002, 0.005, 0.005, 0.002, 0.001])
    assert all(later[1] >= earlier[2] for earlier, later in pairwise(record))


def test_the_renamed_profile_fits_the_model(layered: Profile) -> None:
    """A schedule made from it names and measures the parameters as torch does."""
    replay = Replay(layered, rank=0)
    sizes = {name: parameter.numel() * 4 for name, parameter in replay.named_parameters()}
    assert {g.name: g.size_bytes for g in renamed(layered).gradients} == sizes
    assert parameter_name("a.b") in "stages.0.a__b"


def test_the_reference_is_training_with_averaged_gradients(layered: Profile) -> None:
    """Averaging gradients of two replays in one process leads to the reference's weights, and not without."""
    replays = [Replay(layered, rank=rank) for rank in range(2)]
    for iteration in range(5):
        for replay in replays:
            replay.zero_grad()
            replay(torch.tensor([scale_of(iteration)])).backward()
        with torch.no_grad():
            for left, right in zip(replays[0].parameters(), replays[1].parameters(), strict=True):
                assert left.grad is not None
                assert right.grad is not None
                mean = (left.grad + right.grad) / 2
                left.sub_(LEARNING_RATE * mean)
                right.sub_(LEARNING_RATE * mean)
    own = dict(replays[0].named_parameters())
    weights = torch.cat([own[replays[0].names[g.name]].detach() for g in layered.gradients]).double().numpy()
    assert abs(weights - expected_weights(layered, workers=2, iterations=5)).max() < TOLERANCE
    for wrong in ((1, 5), (2, 4)):
        other = expected_weights(layered, workers=wrong[0], iterations=wrong[1])
        assert abs(weights - other).max() > 100 * TOLERANCE


def test_profiles_that_no_chain_can_replay_are_refused(layered: Profile) -> None:
    """Without a stream, with a gradient nobody waits for, or in another order, no times could be kept."""
    free = layered.replace(ops=tuple(op.model_copy(update={"stream": None}) for op in layered.ops))
    with pytest.raises(InvalidProfile, match="no single stream"):
        plan_replay(free)
    unused = [op.model_copy(update={"waits_for": ()}) if op.name == "fwd/a" else op for op in layered.ops]
    with pytest.raises(InvalidProfile, match=r'no op waits for gradient "a\.weight"'):
        plan_replay(layered.replace(ops=tuple(unused)))
    swapped = {"fwd/a": ("c.weight",), "fwd/c": ("a.weight",)}
    crossed = [op.model_copy(update={"waits_for": swapped.get(op.name, op.waits_for)}) for op in layered.ops]
    with pytest.raises(InvalidProfile, match="reverse order"):
        plan_replay(layered.replace(ops=tuple(crossed)))
