"""Arguments of the wrappers: each is checked, and all ranks must give the same, or all raise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import InvalidOptions, PaceError
from pace.runtime.control.options import WrapperOptions, check_source
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

VALID = WrapperOptions(
    mode="auto",
    order="auto",
    op="average",
    compression="none",
    backward_passes_per_step=1,
    credit_bytes=None,
    timeout_s=300.0,
    broadcast_parameters=True,
)


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("op", "avg", "'average' or 'sum' is needed"),
        ("op", None, "'average' or 'sum' is needed"),
        ("mode", "overlapped", "'overlap', 'barrier' or 'auto' is needed"),
        ("mode", "plain", "'overlap', 'barrier' or 'auto' is needed"),
        ("order", "fifo", "'static', 'adaptive', 'priority', 'overtake' or 'auto' is needed"),
        ("compression", "zip", "'none', 'fp16' or 'bf16' is needed"),
        ("compression", ["fp16"], "'none', 'fp16' or 'bf16' is needed"),
        ("backward_passes_per_step", 0, "a whole number of at least 1 is needed"),
        ("backward_passes_per_step", 2.0, "a whole number of at least 1 is needed"),
        ("backward_passes_per_step", True, "a whole number of at least 1 is needed"),
        ("credit_bytes", -1, "a whole number of at least 1 is needed"),
        ("credit_bytes", "4MiB", "a whole number of at least 1 is needed"),
        ("timeout_s", 0, "a positive number of seconds"),
        ("timeout_s", math.nan, "a positive number of seconds"),
        ("timeout_s", math.inf, "a positive number of seconds"),
        ("timeout_s", "60", "a positive number of seconds"),
        ("broadcast_parameters", 1, "True or False is needed"),
        ("sharding", True, "'off', 'auto' or 'on' is needed"),
        ("max_grad_norm", "1", "a positive number is needed"),
        ("gradient_predivide_factor", 0.0, "a positive number is needed"),
        ("gradient_predivide_factor", "2", "a positive number is needed"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, value: object, needed: str) -> None:
    """The message names the argument, its value and what is allowed."""
    changed: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOptions) as refused:
        replace(VALID, **changed)
    assert str(refused.value).startswith(f"{name} is {value!r}; ")
    assert needed in str(refused.value)


def test_numbers_of_any_library_are_numbers() -> None:
    """NumPy's numbers are as good as Python's."""
    changed: dict[str, Any] = {"credit_bytes": np.int64(5), "timeout_s": np.float32(2.0)}
    assert replace(VALID, **changed).credit_bytes == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": 3}, "schedule is of type int; a Schedule or the path of one is needed"),
        ({"service": ""}, "service is ''; a text that is not empty is needed"),
        ({"job": 7}, "job is 7; a text that is not empty is needed"),
        ({"api_key": b"secret"}, "api_key is <class 'bytes'>; a text that is not empty is needed"),
        ({"replanning": {}}, "replanning is of type dict; a Replanning is needed"),
        ({"schedule": "s.json", "service": "http://127.0.0.1:9"}, "give a schedule or a service, not both"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    """As above; a key is never shown."""
    nothing = dict.fromkeys(("schedule", "service", "job", "api_key", "replanning"))
    with pytest.raises(InvalidOptions) as refused:
        check_source(**(nothing | given))
    assert str(refused.value) == said


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """What rank 1 does otherwise than rank 0, and what every rank is told."""

    kind: str
    said: str
    options: Callable[[int, str], dict[str, Any]] = lambda _rank, _folder: {}
    prepare: Callable[[nn.Module], Any] = lambda _model: None
    optimizer: str = "sgd"


def _option(name: str, on_rank_0: object, on_rank_1: object) -> Callable[[int, str], dict[str, Any]]:
    return lambda rank, _folder: {name: on_rank_1 if rank else on_rank_0}


_DIFFERENCES = {
    "compression": _Difference(
        kind="InvalidOptions",
        said="compression is 'none' on rank 0 and 'fp16' on rank 1",
        options=_option("compression", "none", "fp16"),
    ),
    "mode": _Difference(
        kind="InvalidOptions",
        said="mode is 'auto' on rank 0 and 'overlap' on rank 1",
        options=_option("mode", "auto", "overlap"),
    ),
    "order": _Difference(
        kind="InvalidOptions",
        said="order is 'static' on rank 0 and 'priority' on rank 1",
        options=_option("order", "static", "priority"),
    ),
    "op": _Difference(
        kind="InvalidOptions",
        said="op is 'average' on rank 0 and 'sum' on rank 1",
        options=_option("op", "average", "sum"),
    ),
    "passes": _Difference(
        kind="InvalidOptions",
        said="backward_passes_per_step is 1 on rank 0 and 2 on rank 1",
        options=_option("backward_passes_per_step", 1, 2),
    ),
    "credit": _Difference(
        kind="InvalidOptions",
        said="credit_bytes is None on rank 0 and 64 on rank 1",
        options=_option("credit_bytes", None, 64),
    ),
    "time-out": _Difference(
        kind="InvalidOptions",
        said="timeout_s is 50.0 on rank 0 and 60.0 on rank 1",
        options=_option("timeout_s", 50.0, 60.0),
    ),
    "broadcast": _Difference(
        kind="InvalidOptions",
        said="broadcast_parameters is True on rank 0 and False on rank 1",
        options=_option("broadcast_parameters", True, False),
    ),
    "optimizer": _Difference(
        kind="InvalidOptions", said="optimizer is 'SGD' on rank 0 and 'Adam' on rank 1", optimizer="adam"
    ),
    "nonsense": _Difference(
        kind="InvalidOptions",
        said="rank 1: op is 'avg'; ",
        options=_option("op", "average", "avg"),
    ),
    "nonsense in seconds": _Difference(
        kind="InvalidOptions",
        said="rank 1: timeout_s is -1; a positive number",
        options=_option("timeout_s", 60.0, -1),
    ),
    "missing file": _Difference(
        kind="InvalidOptions",
        said="missing.json', which cannot be read: No such file or directory",
        options=lambda rank, folder: {"schedule": f"{folder}/{'missing' if rank else 'schedule'}.json"},
    ),
    "no schedule": _Difference(
        kind="ScheduleMismatch",
        said="rank 1 was given a schedule and rank 0 none",
        options=lambda rank, folder: {"schedule": f"{folder}/schedule.json" if rank else None},
    ),
    "service": _Difference(
        kind="ScheduleMismatch",
        said="rank 1 was given a schedule and rank 0 none",
        options=lambda rank, folder: (
            {"schedule": f"{folder}/schedule.json"}
            if rank
            else {"service": "http://127.0.0.1:9", "job": "differs"}
        ),
    ),
    "memory format": _Difference(
        kind="ScheduleMismatch",
        said="features.0.weight lies in memory with strides (27, 1, 9, 3) instead of (27, 9, 3, 1)",
        prepare=lambda model: model.to(memory_format=torch.channels_last),  # type: ignore[call-overload]  # torch's stub
    ),
    "frozen": _Difference(
        kind="ScheduleMismatch",
        said="rank 1 has another model than rank 0: head.bias is frozen instead of trained",
        prepare=lambda model: model.get_parameter("head.bias").requires_grad_(False),
    ),
    "shape": _Difference(
        kind="ScheduleMismatch",
        said="head.bias is float32 of shape (5,) instead of float32 of shape (10,)",
        prepare=lambda model: setattr(model.get_submodule("head"), "bias", nn.Parameter(torch.zeros(5))),
    ),
    "stranger": _Difference(
        kind="InvalidOptions",
        said="rank 1: the optimizer updates parameters that are not the model's, of shapes (4,)",
        prepare=lambda model: object.__setattr__(model, "stranger", nn.Parameter(torch.zeros(4))),
    ),
}


def _wrap_differently(rank: int, _size: int, transport: str, folder: str) -> Any:
    told = {}
    for name, difference in _DIFFERENCES.items():
        model = build("conv")
        if rank == 1:
            difference.prepare(model)
        stranger = getattr(model, "stranger", None)
        parameters = trainable(model) + ([] if stranger is None else [stranger])
        optimizer = OPTIMIZERS[difference.optimizer if rank else "sgd"](parameters)
        try:
            wrap(transport, optimizer, model, **difference.options(rank, folder))
        except PaceError as error:
            told[name] = type(error).__name__, str(error)
    # Nobody is out of step afterwards.
    model = build("conv")
    with wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model) as wrapped:
        backward(model(*batches("conv", 1, rank)[0]))
        wrapped.step()
    return told


def test_whatever_differs_between_ranks_is_an_error_on_all_of_them(transport: str, tmp_path: Path) -> None:
    """Both ranks raise the same, which names ranks and values, and can start afterwards."""
    (tmp_path / "schedule.json").write_bytes(shuffled_schedule(build("conv"), 2, seed=1).to_json())
    ranks = run_ranks(
        _wrap_differently, 2, transport, str(tmp_path), backend=cast("Backend", transport), timeout_s=200
    )
    for told in ranks:
        for name, difference in _DIFFERENCES.items():
            assert name in told, name
            kind, message = told[name]
            assert kind == difference.kind, message
            assert difference.said in message
            assert "rank 1" in message
