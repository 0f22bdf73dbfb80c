"""Plans for engines without a model: groups in a given order, told apart by their tails."""

from collections.abc import Sequence

from pace.runtime.engine.plan import PlannedGroup, PlannedSegment, SendPlan


def plan_of(order: Sequence[int], tails: Sequence[float], *, segment_bytes: int) -> SendPlan:
    """Return a plan that sends one segment at a time.

    Parameters
    ----------
    order
        The group of every segment, in planned order.
    tails
        Of every group, in seconds; groups become ready in the order of their numbers.
    """
    return SendPlan(
        source="schedule",
        groups=tuple(
            PlannedGroup(
                gradients=(f"g{number}",),
                size_bytes=segment_bytes * order.count(number),
                dtype="float32",
                ready_s=float(number),
                tail_s=tail,
            )
            for number, tail in enumerate(tails)
        ),
        segments=tuple(
            PlannedSegment(
                group=group, offset_bytes=segment_bytes * order[:at].count(group), size_bytes=segment_bytes
            )
            for at, group in enumerate(order)
        ),
        credit_bytes=0,
    )
