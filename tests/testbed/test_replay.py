"""A replayed profile keeps the profile's order and times."""

from itertools import pairwise

import pytest
import torch

from benchmarks.harness.workload.replay import Replay, plan_replay
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
