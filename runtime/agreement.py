"""Makes all ranks start from the same bytes: rank 0's plan, checked against every rank's model."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pace.errors import PaceError, ScheduleMismatch
from pace.runtime.plan import GradientSize, Plan, PlannedGroup, PlannedSegment
from pace.runtime.transport import Transport


def agree_on_plan(
    transport: Transport, make_plan: Callable[[list[GradientSize]], Plan], gradients: list[GradientSize]
) -> Plan:
    """Return rank 0's plan on every rank.

    Every rank makes its own plan too, so that a rank with another schedule or another model is found
    before the first all-reduce, and a rank that cannot make one does not leave the others waiting.

    Raises
    ------
    ScheduleMismatch
        On every rank, when the schedule does not fit a rank's model or the ranks' models differ.
    """
    try:
        plan, error = make_plan(gradients), None
    except PaceError as raised:
        plan, error = None, raised
    mine = {
        "gradients": [asdict(gradient) for gradient in gradients],
        "plan": plan.sha256 if plan else None,
        "error": str(error) if error else None,
    }
    said: list[dict[str, Any]] = [json.loads(each) for each in transport.gather(json.dumps(mine).encode())]
    faults = [
        f"rank {rank} has another model than rank 0:"
        f" {_first_difference(said[0]['gradients'], each['gradients'])}"
        for rank, each in enumerate(said)
        if each["gradients"] != said[0]["gradients"]
    ]
    if faults:
        raise ScheduleMismatch("; ".join(faults)) from error
    if error is not None:
        raise error
    faults = [f"rank {rank}: {each['error']}" for rank, each in enumerate(said) if each["error"]]
    faults += [
        f"rank {rank} was given another schedule than rank 0"
        for rank, each in enumerate(said)
        if not each["error"] and each["plan"] != said[0]["plan"]
    ]
    if faults:
        raise ScheduleMismatch("; ".join(faults))
    assert plan is not None
    # One and the same bytes: floats derived on two machines may differ where their hashes agree today.
    return decode_plan(transport.broadcast(encode_plan(plan) if transport.rank == 0 else None))


def encode_plan(plan: Plan) -> bytes:
    """Serialise a plan for the other ranks."""
    return json.dumps(asdict(plan)).encode()


def decode_plan(payload: bytes) -> Plan:
    """Read what ``encode_plan`` wrote."""
    fields = json.loads(payload)
    fields["groups"] = tuple(
        PlannedGroup(**{**group, "gradients": tuple(group["gradients"])}) for group in fields["groups"]
    )
    fields["segments"] = tuple(PlannedSegment(**segment) for segment in fields["segments"])
    return Plan(**fields)


def _first_difference(theirs: list[dict[str, Any]], mine: list[dict[str, Any]]) -> str:
    for left, right in zip(theirs, mine, strict=False):
        if left != right:
            return (
                f"{right['name']} ({right['size_bytes']} bytes, {right['dtype']}) "
                f"instead of {left['name']} ({left['size_bytes']} bytes, {left['dtype']})"
            )
    return f"{len(mine)} gradients instead of {len(theirs)}"
