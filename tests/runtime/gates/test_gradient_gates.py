"""Gates in front of ``parameter.grad``."""

from typing import Any

import torch
from torch import nn

from pace.runtime.gates.call_stacks import reader
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
