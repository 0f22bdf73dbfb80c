"""Makes all ranks start alike: from rank 0's plan and weights, checked against every rank's model."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog
import torch
from torch import nn

from pace.errors import InvalidUse, PaceError, ScheduleMismatch
from pace.runtime.plan import GradientSize, Plan, PlannedGroup, PlannedSegment
from pace.runtime.transport import Transport

log = structlog.get_logger("pace.runtime")


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


def agree_on_weights(transport: Transport, model: nn.Module, *, broadcast: bool) -> None:
    """Give every rank rank 0's parameters and buffers, as DistributedDataParallel does.

    Ranks compare hashes first, so that what is equal already is not sent.

    Parameters
    ----------
    broadcast
        Whether to overwrite what differs; otherwise it is an error.

    Raises
    ------
    ScheduleMismatch
        On every rank, when a parameter or buffer is missing on a rank or has another shape.
    InvalidUse
        On every rank, when weights differ and are not to be overwritten.
    """
    if transport.size == 1:
        return
    named = (*model.named_parameters(), *model.named_buffers())
    state = {name.replace("_orig_mod.", ""): t.detach() for name, t in named if t.layout is torch.strided}
    mine = [[name, str(tensor.dtype), list(tensor.shape), _sha256(tensor)] for name, tensor in state.items()]
    said: list[list[Any]] = [json.loads(each) for each in transport.gather(json.dumps(mine).encode())]
    differing: dict[str, int] = {}
    for rank, each in enumerate(said):
        forms, theirs = [entry[:3] for entry in said[0]], [entry[:3] for entry in each]
        if forms != theirs:
            at = next((pair for pair in zip(theirs, forms, strict=False) if pair[0] != pair[1]), None)
            told = f"{at[0]} instead of {at[1]}" if at else f"{len(theirs)} tensors instead of {len(forms)}"
            raise ScheduleMismatch(f"rank {rank} has other parameters or buffers than rank 0: {told}")
        for theirs_now, ours in zip(each, said[0], strict=True):
            if theirs_now[3] != ours[3]:
                differing.setdefault(ours[0], rank)
    if differing and not broadcast:
        name, rank = next(iter(differing.items()))
        raise InvalidUse(
            f"{len(differing)} parameters or buffers differ between ranks, {name} on rank {rank} for one:"
            " make them equal before wrapping, or leave broadcast_parameters=True"
        )
    for name in differing:
        tensor = state[name]
        host = tensor.cpu().contiguous().clone()
        transport.broadcast_tensor(_bytes_of(host))
        tensor.copy_(host)
    if differing:
        log.info("pace.weights_broadcast", tensors=len(differing), of=len(state))


def _sha256(tensor: torch.Tensor) -> str:
    array: Any = _bytes_of(tensor.cpu().contiguous()).numpy()
    return hashlib.sha256(array).hexdigest()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as the bytes that it is."""
    return tensor.reshape(-1).view(torch.uint8)


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
