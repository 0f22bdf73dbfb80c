"""Plans for jobs that push some gradients and all-reduce the others."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pace.runtime.engine.plan import (
    GradientSize,
    PlannedGroup,
    PlannedSegment,
    SendPlan,
    divide,
    plan_locally,
)


def _gradient(name: str, size_bytes: int) -> GradientSize:
    return GradientSize(name=name, size_bytes=size_bytes, dtype="float32")


def test_a_group_of_both_kinds_becomes_two() -> None:
    """The halves share the turns of the group's segments; a group of one kind keeps its own."""
    gradients = [_gradient("table", 40), _gradient("bias", 8), _gradient("head", 16)]
    groups = (
        PlannedGroup(gradients=("head",), size_bytes=16, dtype="float32", ready_s=0.0, tail_s=0.0),
        PlannedGroup(gradients=("bias", "table"), size_bytes=48, dtype="float32", ready_s=1.0, tail_s=1.0),
    )
    segments = (
        PlannedSegment(group=1, offset_bytes=0, size_bytes=24, link=1),
        PlannedSegment(group=0, offset_bytes=0, size_bytes=16, link=0),
        PlannedSegment(group=1, offset_bytes=24, size_bytes=24, link=0),
    )
    plan = SendPlan(source="schedule", groups=groups, segments=segments, credit_bytes=64)
    divided = divide(plan, gradients, {"table"})
    assert [(group.gradients, group.exchange, group.size_bytes) for group in divided.groups] == [
        (("head",), "allreduce", 16),
        (("table",), "servers", 40),
        (("bias",), "allreduce", 8),
    ]
    assert [(s.group, s.offset_bytes, s.size_bytes, s.link) for s in divided.segments] == [
        (1, 0, 24, None),
        (0, 0, 16, None),
        (1, 24, 16, None),
        (2, 0, 8, None),
    ]
    whole = divide(plan, gradients, {"table", "bias"})
    assert [segment.link for segment in whole.segments] == [1, None, 0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_every_byte_is_sent_once_by_its_own_way(
    drawn: list[tuple[int, bool]], group_elements: int, segment_elements: int
) -> None:
    """Whatever was fused: all gradients are there, groups have one kind, and segments cover them."""
    gradients = [_gradient(f"g{number}", 4 * size) for number, (size, _) in enumerate(drawn)]
    pushed = {f"g{number}" for number, (_, goes) in enumerate(drawn) if goes}
    plan = plan_locally(gradients, max_group_bytes=4 * group_elements, max_segment_bytes=4 * segment_elements)
    divided = divide(plan, gradients, pushed)
    assert sorted(name for group in divided.groups for name in group.gradients) == sorted(
        gradient.name for gradient in gradients
    )
    for number, group in enumerate(divided.groups):
        assert {name in pushed for name in group.gradients} == {group.exchange == "servers"}
        position = 0
        for segment in divided.segments:
            if segment.group == number:
                assert segment.offset_bytes == position
                position += segment.size_bytes
        assert position == group.size_bytes
