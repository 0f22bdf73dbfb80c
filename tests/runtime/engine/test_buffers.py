"""Buffers: where gradients, marks and codes lie, and when user code still needs an old buffer."""

import torch
from torch import nn

from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.engine.buffers import FusedGroup, build_groups, closing_group, segment_tensors
from pace.runtime.engine.plan import SendPlan, plan_locally


def _build(
    model: nn.Module, *, max_group_bytes: int = 1 << 20, max_segment_bytes: int = 1 << 20
) -> tuple[SendPlan, list[FusedGroup]]:
    parameters = dict(model.named_parameters())
    plan = plan_locally(
        gradient_sizes(parameters), max_group_bytes=max_group_bytes, max_segment_bytes=max_segment_bytes
    )
    return plan, build_groups(plan, parameters, num_ranks=3)


def test_segments_cover_gradients_and_marks_once() -> None:
    """Every element of a buffer is sent by exactly one segment, the marks and the ranks' numbers too."""
    plan, groups = _build(
        nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), max_group_bytes=100, max_segment_bytes=40
    )
    for tensor in segment_tensors(plan, groups):
        tensor += 1
    assert len(groups) > 1
    for group in groups:
        assert group.buffer.tolist() == [1.0] * len(group.buffer)


def test_the_group_that_is_ready_last_carries_one_number_a_rank() -> None:
    """Only it does."""
    plan, groups = _build(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), max_group_bytes=100)
    closing = closing_group(plan)
    assert plan.groups[closing].ready_s == max(group.ready_s for group in plan.groups)
    assert [len(group.codes) for group in groups] == [3 if g.number == closing else 0 for g in groups]


def test_views_have_their_parameters_strides() -> None:
    """A fused optimizer walks through both in memory's order."""
    convolution = nn.Conv2d(3, 4, 2)
    convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
    transposed = nn.Module()
    transposed.weight = nn.Parameter(torch.zeros(3, 5).t())
    for model in (convolution, transposed):
        _, groups = _build(model)
        for group in groups:
            for slot in group.slots:
                assert slot.view.stride() == slot.parameter.stride()
                slot.view.copy_(torch.arange(slot.view.numel()).view(slot.view.shape))
        flat = torch.cat([group.gradients for group in groups])
        assert sorted(flat.tolist()) == sorted(
            float(n) for g in groups for s in g.slots for n in range(s.view.numel())
        )


def test_a_cleared_gradient_that_somebody_keeps_gets_memory_of_its_own() -> None:
    """While it is still current it is the buffer's, so that later contributions show in it."""
    _, (group,) = _build(nn.Linear(3, 2))
    group.settle_references()
    slot = group.slots[0]
    kept = slot.shown
    slot.base = True
    assert not group.release_kept()
    slot.view.fill_(1)
    assert set(kept.flatten().tolist()) == {1.0}
    slot.base = False
    assert not group.release_kept()
    slot.view.fill_(2)
    assert set(kept.flatten().tolist()) == {1.0}
    assert set(slot.shown.flatten().tolist()) == {2.0}


def test_a_part_of_a_cleared_gradient_holds_the_buffer() -> None:
    """Until it is let go."""
    _, (group,) = _build(nn.Linear(3, 2))
    group.settle_references()
    part = group.slots[0].shown[0]
    assert group.release_kept()
    del part
    assert not group.release_kept()
