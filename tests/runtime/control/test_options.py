"""Arguments of the wrappers: each is checked, and all ranks must give the same, or all raise."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import pace.runtime.ddp
import pace.runtime.fsdp
import pace.runtime.torch
from pace.errors import InvalidOptions, PaceError
from pace.runtime.control.options import WrapperOptions
from pace.runtime.options import AllReduce, Plan
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap


@pytest.mark.parametrize(
    ("kind", "name", "value", "needed"),
    [
        (WrapperOptions, "op", "avg", "'average' or 'sum' is needed"),
        (WrapperOptions, "op", None, "'average' or 'sum' is needed"),
        (WrapperOptions, "mode", "overlapped", "'overlap', 'barrier', 'auto' or 'check' is needed"),
        (WrapperOptions, "mode", "plain", "'overlap', 'barrier', 'auto' or 'check' is needed"),
        (WrapperOptions, "backward_passes_per_step", 0, "a whole number of at least 1 is needed"),
        (WrapperOptions, "backward_passes_per_step", 2.0, "a whole number of at least 1 is needed"),
        (WrapperOptions, "backward_passes_per_step", True, "a whole number of at least 1 is needed"),
        (WrapperOptions, "timeout_s", 0, "a positive number of seconds"),
        (WrapperOptions, "timeout_s", math.nan, "a positive number of seconds"),
        (WrapperOptions, "timeout_s", math.inf, "a positive number of seconds"),
        (WrapperOptions, "timeout_s", "60", "a positive number of seconds"),
        (WrapperOptions, "broadcast_parameters", 1, "True or False is needed"),
        (WrapperOptions, "max_grad_norm", "1", "a positive number is needed"),
        (WrapperOptions, "gradient_predivide_factor", 0.0, "a positive number is needed"),
        (WrapperOptions, "gradient_predivide_factor", "2", "a positive number is needed"),
        (Plan, "order", "fifo", "'static', 'adaptive', 'priority', 'overtake' or 'auto' is needed"),
        (Plan, "credit_bytes", -1, "a whole number of at least 0 is needed"),
        (Plan, "credit_bytes", "4MiB", "a whole number of at least 0 is needed"),
        (Plan, "service", "", "a text that is not empty is needed"),
        (Plan, "job", 7, "a text that is not empty is needed"),
        (AllReduce, "compression", "zip", "'none', 'fp16' or 'bf16' is needed"),
        (AllReduce, "compression", ["fp16"], "'none', 'fp16' or 'bf16' is needed"),
        (AllReduce, "sharding", True, "'off', 'auto' or 'on' is needed"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(kind: Any, name: str, value: object, needed: str) -> None:
    """The message names the argument, its value and what is allowed."""
    with pytest.raises(InvalidOptions) as refused:
        kind(**{name: value})
    assert str(refused.value).startswith(f"{name} is {value!r}; ")
    assert needed in str(refused.value)


def test_plain_training_is_a_mode_of_the_log_only() -> None:
    """Whoever read the mode's name there is told how to get it."""
    with pytest.raises(InvalidOptions, match="'auto' keeps 'plain' where it is fastest, and plain training"):
        WrapperOptions(mode=cast("Any", "plain"))


def test_numbers_of_any_library_are_numbers() -> None:
    """NumPy's numbers are as good as Python's."""
    assert Plan(credit_bytes=cast("Any", np.int64(5))).credit_bytes == 5
    assert WrapperOptions(timeout_s=cast("Any", np.float32(2.0))).timeout_s == 2.0


def _any(kind: Any) -> Any:
    """Return a class for calls that no type checker would let pass."""
    return kind


@pytest.mark.parametrize(
    ("build_options", "said"),
    [
        (lambda: _any(Plan)(schedule=3), "schedule is of type int; a Schedule or the path of one is needed"),
        (
            lambda: _any(Plan)(api_key=b"secret"),
            "api_key is <class 'bytes'>; a text that is not empty is needed",
        ),
        (lambda: _any(Plan)(replanning={}), "replanning is of type dict; a Replanning is needed"),
        (
            lambda: Plan(schedule="s.json", service="http://127.0.0.1:9"),
            "give a Plan a schedule or a service, not both",
        ),
        (
            lambda: _any(Plan)("s.json"),
            "Plan takes schedule, service, job, api_key, order, credit_bytes, replanning by name only;"
            " got a positional str",
        ),
        (
            lambda: _any(Plan)(compression="fp16"),
            "Plan has no option compression: give communication=AllReduce(compression=...)",
        ),
        (lambda: _any(AllReduce)(zip=True), "AllReduce has no option zip: it has compression, sharding"),
        (
            lambda: _any(WrapperOptions)(plan="s.json"),
            "plan is of type str; a Plan, as in plan=Plan(schedule='schedule.json'), or a Tune is needed",
        ),
        (
            lambda: _any(WrapperOptions)(communication="servers"),
            "communication is of type str; AllReduce(), or ParameterServers() or Mixed() of"
            " pace_servers.runtime, is needed",
        ),
        (
            lambda: _any(WrapperOptions)(communication=AllReduce),
            "communication is the class AllReduce; AllReduce(), or ParameterServers() or Mixed() of"
            " pace_servers.runtime, is needed",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(build_options: Callable[[], Any], said: str) -> None:
    """Wrong types, unknown names and contradictions, in one line that says what to do; no secret is shown."""
    with pytest.raises(InvalidOptions) as refused:
        build_options()
    assert str(refused.value) == said


def test_secrets_are_not_in_what_is_printed() -> None:
    """A key is not."""
    assert "secret" not in repr(Plan(api_key="secret"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("schedule", "give plan=Plan(schedule=...)"),
        ("order", "give plan=Plan(order=...)"),
        ("compression", "give communication=AllReduce(compression=...)"),
        ("backend", "communication=AllReduce() or pace_servers.runtime.ParameterServers() says what sums"),
        ("consistency", "pace_servers.runtime.asynchronous() trains without waiting for all ranks"),
        ("scedule", "it has plan, communication, mode, timeout_s"),
    ],
)
def test_front_doors_say_where_an_option_belongs(name: str, said: str) -> None:
    """An option that is given to a front door itself is an error that names its object."""
    given: Any = {name: "x"}
    doors: list[Callable[[], Any]] = [
        lambda: pace.runtime.torch.DistributedOptimizer(cast("Any", None), nn.Linear(1, 1), **given),
        lambda: pace.runtime.ddp.attach(nn.Linear(1, 1), cast("Any", None), **given),
        lambda: pace.runtime.fsdp.attach(nn.Linear(1, 1), cast("Any", None), **given),
    ]
    for enter in doors:
        with pytest.raises(InvalidOptions) as refused:
            enter()
        assert f"has no option {name}: {said}" in str(refused.value)


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


def _differing(name: str, on_rank_0: object, on_rank_1: object) -> _Difference:
    return _Difference(
        kind="InvalidOptions",
        said=f"{name} is {on_rank_0!r} on rank 0 and {on_rank_1!r} on rank 1",
        options=_option(name, on_rank_0, on_rank_1),
    )


_DIFFERENCES = {
    "compression": _differing("compression", "none", "fp16"),
    "mode": _differing("mode", "auto", "overlap"),
    "order": _differing("order", "static", "priority"),
    "op": _differing("op", "average", "sum"),
    "passes": _differing("backward_passes_per_step", 1, 2),
    "credit": _differing("credit_bytes", None, 64),
    "time-out": _differing("timeout_s", 50.0, 60.0),
    "broadcast": _differing("broadcast_parameters", True, False),
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
        said="features.0.weight has strides (27, 1, 9, 3) instead of (27, 9, 3, 1)",
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
