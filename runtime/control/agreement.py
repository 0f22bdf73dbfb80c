"""The comparison of all ranks' arguments, models and schedules before training: all start, or all raise."""

import ctypes
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidSchedule, InvalidUse, PaceError, ScheduleMismatch
from pace.runtime.control.parameters import dtype_name
from pace.runtime.engine.buffers import local_part
from pace.runtime.engine.plan import PlannedGroup, PlannedSegment, PlannedShard, SendPlan
from pace.runtime.event_log import log
from pace.runtime.transports.transport import Transport

T = TypeVar("T")

# The most ranks, or parameters, that a message names.
_MOST_NAMED = 5

_SHARED_ERRORS: dict[str, type[PaceError]] = {
    kind.__name__: kind for kind in (InvalidOptions, InvalidSchedule, InvalidUse, ScheduleMismatch)
}


@dataclass(slots=True, kw_only=True)
class Form:
    """The properties of a parameter that must be equal on all ranks.

    Attributes
    ----------
    state
        "trained", "frozen", or "not the optimizer's".
    strides
        Its strides; 0 along dimensions of one element, where they have no meaning.
    """

    shape: list[int]
    dtype: str
    state: str
    strides: list[int]


@dataclass(slots=True, kw_only=True)
class Statement:
    """One rank's description of itself; fields that it cannot fill because of `error` have defaults.

    Attributes
    ----------
    forms
        The model's parameters by name.
    options
        The arguments, which must be equal on all ranks.
    schedule
        Hash of the plan made from the given schedule; None without one.
    terms
        The service to ask for a schedule. Rank 0's settings apply to all ranks.
    barrier_reason, whole_reason
        Why updates cannot be applied group by group, and why they cannot be sharded; None if they can.
    error
        The class and the text of the error that was raised.
    """

    forms: dict[str, Form] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    terms: list[Any] = field(default_factory=list)
    barrier_reason: str | None = None
    whole_reason: str | None = None
    error: list[str] | None = None


def forms_of(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> dict[str, Form]:
    """Describe a model's parameters."""
    return {
        name: Form(
            shape=list(parameter.shape),
            dtype=dtype_name(parameter),
            state="trained"
            if name in trained
            else "not the optimizer's"
            if parameter.requires_grad
            else "frozen",
            strides=[
                stride if size > 1 else 0
                for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
            ],
        )
        for name, parameter in ((n.replace("_orig_mod.", ""), p) for n, p in model.named_parameters())
    }


def exchange(transport: Transport, describe: Callable[[Statement], T]) -> tuple[T, list[Statement]]:
    """Call `describe` on every rank; return its result and the statements of all ranks (without `forms`).

    Raises
    ------
    ScheduleMismatch
        On every rank, if models or schedules differ.
    InvalidOptions
        On every rank, if arguments differ.
    PaceError
        On every rank, of the same class, if `describe` raised on one rank. The message names the rank, unless
        all ranks have the same error.
    """
    mine = Statement()
    result: list[T] = []
    error: Exception | None = None
    try:
        result.append(describe(mine))
    except Exception as raised:  # whatever it is, the other ranks must not wait for this one
        error = raised
        known = isinstance(raised, tuple(_SHARED_ERRORS.values()))
        mine.error = [type(raised).__name__, str(raised) if known else f"{type(raised).__name__}: {raised}"]
    document = asdict(mine)
    forms = json.dumps(document.pop("forms"))
    document["forms_sha256"] = hashlib.sha256(forms.encode()).hexdigest() if mine.forms else None
    documents = [json.loads(each) for each in transport.gather(json.dumps(document, default=float).encode())]
    other = next((rank for rank, each in enumerate(documents) if "forms_sha256" not in each), None)
    if other is not None:
        raise InvalidOptions(
            f"the arguments differ between ranks: communication of rank {other} is of another kind than"
            f" that of rank {transport.rank}"
        )
    # Forms are large and mostly equal on all ranks, so they are sent only to find out what differs.
    digests = [each.pop("forms_sha256") for each in documents]
    if len({digest for digest in digests if digest is not None}) > 1:
        _refuse_other_models([json.loads(each) for each in transport.gather(forms.encode())], error)
    statements = [Statement(**each) for each in documents]
    _refuse_errors(statements, error)
    _refuse_other_options(statements)
    _refuse_other_schedules(statements)
    return result[0], statements


def _refuse_other_models(statements: list[dict[str, dict[str, Any]]], error: Exception | None) -> None:
    faults = [
        f"rank {rank} has another model than rank {first}: {'; '.join(differences)}"
        for first, reference in [next((rank, each) for rank, each in enumerate(statements) if each)]
        for rank, each in enumerate(statements)
        if each and (differences := list(_differences(each, reference))[:_MOST_NAMED])
    ]
    if faults:
        raise ScheduleMismatch("; ".join(faults[:_MOST_NAMED])) from error


def _differences(theirs: dict[str, dict[str, Any]], reference: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name in (*reference, *(name for name in theirs if name not in reference)):
        one, other = theirs.get(name), reference.get(name)
        if "trained" not in (one and one["state"], other and other["state"]):
            continue
        if one is None:
            yield f"it has no parameter {name}"
        elif other is None:
            yield f"it has an additional parameter {name}"
        elif one["state"] != other["state"]:
            yield f"{name} is {one['state']} instead of {other['state']}"
        elif (one["shape"], one["dtype"]) != (other["shape"], other["dtype"]):
            yield (
                f"{name} is {one['dtype']} of shape {tuple(one['shape'])} instead of"
                f" {other['dtype']} of shape {tuple(other['shape'])}"
            )
        elif one["strides"] != other["strides"]:
            yield (
                f"{name} has strides {tuple(one['strides'])} instead of"
                f" {tuple(other['strides'])}: use the same memory format on all ranks"
            )


def _refuse_errors(statements: list[Statement], error: Exception | None) -> None:
    errors = {rank: each.error for rank, each in enumerate(statements) if each.error is not None}
    if not errors:
        return
    if (
        error is not None
        and len(errors) == len(statements)
        and all(each == statements[0].error for each in errors.values())
    ):
        raise error
    kind = _SHARED_ERRORS.get(next(iter(errors.values()))[0], InvalidUse)
    shown = [f"rank {rank}: {text}" for rank, (_, text) in list(errors.items())[:_MOST_NAMED]]
    raise kind("; ".join(shown)) from error


def _refuse_other_options(statements: list[Statement]) -> None:
    faults = [
        f"{name} is {_by_rank([each.options[name] for each in statements])}"
        for name in statements[0].options
        if any(each.options[name] != statements[0].options[name] for each in statements)
    ]
    if faults:
        raise InvalidOptions(f"the arguments differ between ranks: {'; '.join(faults)}")


def _by_rank(values: list[Any]) -> str:
    """Return which ranks have which value, as "'fp16' on rank 0 and 'none' on ranks 1, 2"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(repr(value), []).append(rank)
    return " and ".join(
        f"{value} on rank{'s' if len(having) > 1 else ''} {', '.join(map(str, having[:_MOST_NAMED]))}"
        f"{', ...' if len(having) > _MOST_NAMED else ''}"
        for value, having in list(ranks.items())[:_MOST_NAMED]
    )


def _refuse_other_schedules(statements: list[Statement]) -> None:
    first = statements[0].schedule
    faults = []
    for rank, each in enumerate(statements):
        if each.schedule is None and first is not None:
            faults.append(f"rank {rank} was given no schedule and rank 0 one")
        elif each.schedule is not None and first is None:
            faults.append(f"rank {rank} was given a schedule and rank 0 none")
        elif each.schedule != first:
            faults.append(f"rank {rank} was given another schedule than rank 0")
    if faults:
        raise ScheduleMismatch("; ".join(faults[:_MOST_NAMED]))


def agree_on_plan(transport: Transport, plan: SendPlan) -> SendPlan:
    """Return rank 0's plan on every rank, as floats computed on two machines may differ."""
    return decode_plan(transport.broadcast(encode_plan(plan) if transport.rank == 0 else None))


def agree_on_weights(
    transport: Transport, model: nn.Module, *, broadcast: bool, with_buffers: bool = True
) -> None:
    """Give every rank the parameters and buffers of rank 0, as DistributedDataParallel does.

    Ranks compare hashes first, so that only tensors that differ are sent.

    Parameters
    ----------
    broadcast
        Whether to overwrite tensors that differ. Otherwise they are an error.
    with_buffers
        Whether to include buffers.

    Raises
    ------
    ScheduleMismatch
        On every rank, if a parameter or buffer is missing on a rank or has another shape.
    InvalidUse
        On every rank, if weights differ and `broadcast` is False.
    """
    if transport.size == 1:
        return
    named = (*model.named_parameters(), *(model.named_buffers() if with_buffers else ()))
    state = {
        name.replace("_orig_mod.", ""): local_part(tensor).detach()
        for name, tensor in named
        if tensor.layout is torch.strided
    }
    mine = [[name, str(tensor.dtype), list(tensor.shape), _sha256(tensor)] for name, tensor in state.items()]
    statements: list[list[Any]] = [json.loads(each) for each in transport.gather(json.dumps(mine).encode())]
    differing: dict[str, int] = {}
    for rank, each in enumerate(statements):
        forms, theirs = [entry[:3] for entry in statements[0]], [entry[:3] for entry in each]
        if forms != theirs:
            at = next((pair for pair in zip(theirs, forms, strict=False) if pair[0] != pair[1]), None)
            told = f"{at[0]} instead of {at[1]}" if at else f"{len(theirs)} tensors instead of {len(forms)}"
            raise ScheduleMismatch(f"rank {rank} has other parameters or buffers than rank 0: {told}")
        for theirs_now, ours in zip(each, statements[0], strict=True):
            if theirs_now[3] != ours[3]:
                differing.setdefault(ours[0], rank)
    if differing and not broadcast:
        name, rank = next(iter(differing.items()))
        raise InvalidUse(
            f"{len(differing)} parameters or buffers differ between ranks, {name} on rank {rank} for one:"
            " make them equal before wrapping, by one seed or one checkpoint on every rank"
        )
    for name in differing:
        tensor = state[name]
        host = tensor.cpu().contiguous().clone()
        transport.broadcast_tensor(_bytes_of(host))
        tensor.copy_(host)
    if differing and transport.rank == 0:
        log.info(
            "pace.weights_broadcast",
            changed=len(differing),
            total=len(state),
            consequence="these parameters and buffers differed between ranks, and are now rank 0's",
        )


def describe_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, str]:
    """Return a digest of each entry of an optimizer's state and of each hyper-parameter, by its name."""
    state = vars(optimizer)["state"]
    values = {
        f"{entry} of {name}": value
        for name, parameter in parameters.items()
        for entry, value in (dict.get(state, parameter) or {}).items()
    } | {
        f"{entry} of parameter group {number}": value
        for number, group in enumerate(optimizer.param_groups)
        for entry, value in group.items()
        if entry != "params"
    }
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: Any) -> str:
    """Return a text that is equal for equal values; the name of the type for what cannot be compared."""
    if isinstance(value, torch.Tensor):
        tensor = local_part(value).detach()
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_meta:
            return f"{tensor.dtype} {tuple(tensor.shape)} {_sha256(tensor)}"
    if isinstance(value, float):  # a schedule may compute it with another last digit on another machine
        return f"{value:.9g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_digest, value))
    return repr(value) if isinstance(value, int | str | None) else type(value).__name__


def agree_on_state(transport: Transport, mine: Mapping[str, str]) -> None:
    """Check that all ranks have the same optimizer state, as their updates would differ otherwise.

    Parameters
    ----------
    mine
        What ``describe_state`` returned on this rank.

    Raises
    ------
    InvalidUse
        On every rank, if states differ; the message names a rank and an entry.
    """
    statements: list[dict[str, str]] = [
        json.loads(each) for each in transport.gather(json.dumps(mine).encode())
    ]
    first = statements[0]
    for rank, theirs in enumerate(statements):
        for name in first | theirs:
            if theirs.get(name) == first.get(name):
                continue
            told = f"rank {rank} has another {name} than rank 0"
            if name not in theirs or name not in first:
                having, lacking = (0, rank) if name in first else (rank, 0)
                told = f"rank {having} has {name}, and rank {lacking} has none"
            raise InvalidUse(
                f"the optimizer's state differs between ranks: {told}; load the same checkpoint by"
                " load_state_dict() on every rank, in the same step"
            )


def _sha256(tensor: torch.Tensor) -> str:
    host = tensor.cpu().contiguous()
    # Not through NumPy: torch would never again resize the memory, as observers of quantization do.
    memory = (ctypes.c_char * host.nbytes).from_address(host.data_ptr())
    return hashlib.sha256(memory).hexdigest()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def encode_plan(plan: SendPlan) -> bytes:
    """Serialize a plan for the other ranks."""
    return json.dumps(asdict(plan)).encode()


def decode_plan(payload: bytes) -> SendPlan:
    """Deserialize a plan from ``encode_plan``."""
    fields = json.loads(payload)
    fields["groups"] = tuple(
        PlannedGroup(**{**group, "gradients": tuple(group["gradients"]), "shards": tuple(group["shards"])})
        for group in fields["groups"]
    )
    fields["shards"] = tuple(
        PlannedShard(**{**shard, "gradients": tuple(shard["gradients"])}) for shard in fields["shards"]
    )
    fields["segments"] = tuple(PlannedSegment(**segment) for segment in fields["segments"])
    return SendPlan(**fields)
