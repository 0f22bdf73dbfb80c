"""Refuses a plan whose own order would hang, before any rank uses it.

The engine sends the segments of a queue in the plan's order, on every rank the same, each once its group is
submitted. Gradients are submitted without waiting for any segment, and a gather once the reduce-scatters of
its shards have ended. So in the wait-for relation of ``pace.order`` an arrow leads from a gather's segment to
each segment of these reduce-scatters, and from each segment to the one before it. A circle needs an arrow
forward in the order: the plan hangs if and only if a gather comes before a segment of a reduce-scatter that
it needs. This takes O(segments), without the arrays and the compiled code of ``pace check-order``.
"""

from pace.errors import ScheduleMismatch
from pace.runtime.engine.plan import PlannedGroup, SendPlan


def refuse_hanging(plan: SendPlan) -> SendPlan:
    """Return a plan that cannot hang.

    Raises
    ------
    ScheduleMismatch
        If it can. The message says which call waits for which.
    """
    last_of: dict[int, tuple[int, int]] = {}
    groups = plan.groups
    for number, segment in enumerate(plan.segments):
        if groups[segment.group].exchange == "reduce-scatter":
            for shard in groups[segment.group].shards:
                last_of[shard] = (number, segment.group)
    for number, segment in enumerate(plan.segments if last_of else ()):
        group = groups[segment.group]
        if group.exchange != "all-gather":
            continue
        for shard in group.shards:
            later, scatter = last_of.get(shard, (-1, -1))
            if later > number:
                raise ScheduleMismatch(
                    f"the plan can hang: every rank waits at segment {number}, "
                    f"{_call(group, segment.group)}, for segment {later}, {_call(groups[scatter], scatter)}, "
                    "which it sends only afterwards"
                )
    return plan


def _call(group: PlannedGroup, number: int) -> str:
    return f'the {group.exchange} of group {number} ("{group.gradients[0]}")'
