"""Gates in front of ``parameter.grad``, and in front of an optimizer's parameter groups."""

import copy
from typing import Any

import torch
from torch import nn

from pace.runtime.gates.call_stacks import inside_zero_grad, reader
from pace.runtime.gates.gated_param_groups import GatedParamGroup, gate_param_groups, ungate_param_groups
from pace.runtime.gates.gradient_gates import close_gate, local_gradient, open_gate, without_gates


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def read(self) -> torch.Tensor | None:
        self.calls.append(reader())
        return torch.ones(2)

    def write(self, value: torch.Tensor | None) -> None:
        self.calls.append(value)


def _values(parameter: nn.Parameter) -> list[float]:
    assert parameter.grad is not None
    values: list[float] = parameter.grad.tolist()
    return values


def test_a_gate_answers_for_its_parameter_alone() -> None:
    """Reads, writes and deletions come to it; other parameters, and autograd, are left alone."""
    gated: Any = nn.Parameter(torch.zeros(2))
    other, gate = nn.Parameter(torch.zeros(2)), _Recorder()
    open_gate(gated, gate)
    torch.autograd.backward((gated * 3 + other * 5).sum())
    assert _values(gated) == [1.0, 1.0]
    gated.grad = None
    del gated.grad
    assert gate.calls == ["user", "user", None, None]
    assert _values(other) == [5.0, 5.0]
    mine = local_gradient(gated)
    assert mine is not None
    assert mine.tolist() == [3.0, 3.0]
    with without_gates():
        assert gated.grad is mine
    close_gate(gated, gate)
    assert gated.grad is mine
    assert "grad" not in nn.Parameter.__dict__


def test_torchs_own_zeroing_is_told_from_user_code() -> None:
    """By a module or an optimizer, with and without set_to_none."""
    model, gate = nn.Linear(2, 1, bias=False), _Recorder()
    (weight,) = model.parameters()
    open_gate(weight, gate)
    model.zero_grad()
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    assert gate.calls == ["clearing", None] * 2
    gate.calls.clear()
    model.zero_grad(set_to_none=False)
    assert set(gate.calls) == {"zeroing"}
    close_gate(weight, gate)


def test_listing_parameters_for_zeroing_is_told_from_other_listing() -> None:
    """Through all the generators between zero_grad and a module's dict."""
    seen: list[bool] = []

    class Listed(dict[str, Any]):
        def items(self) -> Any:
            seen.append(inside_zero_grad())
            return super().items()

    layer = nn.Linear(2, 1)
    model = nn.Sequential(nn.Sequential(layer))
    layer._parameters = Listed(layer._parameters)
    model.zero_grad()
    list(model.parameters())
    assert seen == [True, False]


def test_only_reading_parameters_waits() -> None:
    """In whatever way the group is read; learning rates are read and written at once."""
    model, waits = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gate_param_groups(optimizer, lambda: waits.append(1))
    group = optimizer.param_groups[0]
    group["lr"] = group["lr"] / 2
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert waits == []
    for read in (
        lambda: group["params"],
        lambda: group.get("params"),
        lambda: dict(group),
        lambda: {**group},
        lambda: group.copy(),
        lambda: list(group.values()),
        lambda: list(group.items()),
        lambda: copy.deepcopy(group),
    ):
        before = len(waits)
        read()
        assert len(waits) > before
    assert type(copy.deepcopy(optimizer).param_groups[0]) is dict
    ungate_param_groups(optimizer)
    assert type(optimizer.param_groups[0]) is dict
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert scheduler.optimizer is optimizer
    assert not any(isinstance(each, GatedParamGroup) for each in optimizer.param_groups)
