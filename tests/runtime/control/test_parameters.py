"""Which parameters are trained, and which cannot be."""

import pytest
import torch

from pace.errors import InvalidOptions
from pace.runtime.control.parameters import trained_parameters
from tests.runtime.models import build


def test_parameters_are_named_in_order_and_frozen_ones_left_out() -> None:
    """Only what the optimizer updates and what wants a gradient; a compiled model has the same names."""
    model = build("branches")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert list(trained_parameters(model, optimizer)) == names
    some = torch.optim.SGD([p for name, p in model.named_parameters() if name.startswith("odd")], lr=0.1)
    assert list(trained_parameters(model, some)) == ["odd.weight", "odd.bias"]


def test_what_cannot_be_trained_is_refused_with_the_reason() -> None:
    """Parameters of another model, dtypes that no schedule knows, optimizers that want sparse gradients."""
    model = build("mixed")
    with pytest.raises(InvalidOptions, match=r"not the model's, of shapes \(3,\)"):
        trained_parameters(model, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1))
    of_rows = torch.optim.SparseAdam(list(model.parameters()))
    with pytest.raises(InvalidOptions, match=r"use Adam, or pace_servers\.runtime\.asynchronous"):
        trained_parameters(model, of_rows)
    assert trained_parameters(model, of_rows, sums_gradients=False)
    strange = torch.nn.Module()
    strange.phase = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(InvalidOptions, match="phase is complex64, which cannot be scheduled"):
        trained_parameters(strange, torch.optim.SGD(strange.parameters(), lr=0.1))
