"""A plan for a job that sums some gradients on parameter servers and all-reduces the others."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from pace.runtime.engine.plan import GradientSize, GroupExchange, PlannedGroup, PlannedSegment, SendPlan, cut


def divide(plan: SendPlan, gradients: Sequence[GradientSize], pushed: Collection[str]) -> SendPlan:
    """Set how each group is summed; split groups that have gradients of both kinds.

    The segments of both parts keep the places of the group's segments in the order, byte for byte.

    Parameters
    ----------
    gradients
        All gradients of the plan.
    pushed
        Names of those that are summed on parameter servers.
    """
    sizes = {gradient.name: gradient.size_bytes for gradient in gradients}
    groups: list[PlannedGroup] = []
    new_numbers: list[list[int]] = []
    for group in plan.groups:
        names = {
            "servers": tuple(name for name in group.gradients if name in pushed),
            "allreduce": tuple(name for name in group.gradients if name not in pushed),
        }
        kinds: list[GroupExchange] = ["servers", "allreduce"]
        mine = [kind for kind in kinds if names[kind]]
        new_numbers.append(list(range(len(groups), len(groups) + len(mine))))
        groups += [
            replace(
                group,
                gradients=names[kind],
                size_bytes=sum(sizes[name] for name in names[kind]),
                exchange=kind,
            )
            for kind in mine
        ]
    return replace(plan, groups=tuple(groups), segments=tuple(_segments(plan, groups, new_numbers)))


def _segments(
    plan: SendPlan, groups: Sequence[PlannedGroup], new_numbers: Sequence[Sequence[int]]
) -> list[PlannedSegment]:
    longest = [0] * len(plan.groups)
    for segment in plan.segments:
        longest[segment.group] = max(longest[segment.group], segment.size_bytes)
    waiting = [
        [part for new in numbers for part in cut(new, groups[new].size_bytes, groups[new].dtype, most)]
        if len(numbers) > 1
        else []
        for numbers, most in zip(new_numbers, longest, strict=True)
    ]
    owed = [0] * len(plan.groups)
    segments = []
    for segment in plan.segments:
        numbers = new_numbers[segment.group]
        if len(numbers) == 1:
            link = segment.link if groups[numbers[0]].exchange == "servers" else None
            segments.append(replace(segment, group=numbers[0], link=link))
            continue
        owed[segment.group] += segment.size_bytes
        parts = waiting[segment.group]
        while parts and owed[segment.group] > 0:
            part = parts.pop(0)
            owed[segment.group] -= part.size_bytes
            segments.append(part)
    return segments
