"""Who shares a parameter's memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.engine.buffers import build_groups
from pace.runtime.engine.plan import plan_locally
from pace.runtime.gates.memory_watch import MemoryWatch


def _watch(model: nn.Module) -> MemoryWatch:
    parameters = dict(model.named_parameters())
    groups = build_groups(plan_locally(gradient_sizes(parameters)), parameters, num_ranks=1)
    return MemoryWatch([slot for group in groups for slot in group.slots])


def _shared(watch: MemoryWatch) -> set[str]:
    return {slot.name for slot in watch.shared()}


_ALIASES: dict[str, Callable[[nn.Linear], Any]] = {
    "data": lambda layer: layer.weight.data,
    "detached": lambda layer: layer.weight.detach(),
    "view": lambda layer: layer.weight.view(-1),
    "row": lambda layer: layer.weight.data[0],
    "array": lambda layer: layer.weight.detach().numpy(),
    "state": lambda layer: layer.state_dict()["weight"],
}


@pytest.mark.parametrize("alias", _ALIASES)
def test_aliases_are_noticed_as_long_as_they_live(alias: str) -> None:
    """From before and from after the watch began; parameters themselves are no aliases."""
    layer = nn.Linear(3, 2)
    before = _ALIASES[alias](layer)
    watch = _watch(layer)
    assert _shared(watch) == {"weight"}
    del before
    names = [layer.weight, *layer.parameters()]
    assert _shared(watch) == set()
    after = _ALIASES[alias](layer)
    assert _shared(watch) == {"weight"}
    del after, names
    assert _shared(watch) == set()


def test_what_the_model_itself_shares_is_no_alias() -> None:
    """Tied weights, and parameters that are parts of one memory."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector, model.parameters())
    watch = _watch(model)
    assert _shared(watch) == {"0.weight", "0.bias", "1.bias"}  # `vector` is the loop's
    del vector
    assert _shared(watch) == set()


def test_moved_parameters_are_followed() -> None:
    """As by ``model.to(...)`` or ``parameter.data = ...``."""
    layer = nn.Linear(3, 2)
    watch = _watch(layer)
    data = torch.zeros(2, 3)
    layer.weight.data = data
    assert _shared(watch) == {"weight"}
    del data
    assert _shared(watch) == set()


@pytest.mark.parametrize("make", [np.asarray, bytearray])
def test_memory_that_torch_did_not_allocate_is_shared(make: Callable[[Any], Any]) -> None:
    """NumPy arrays and other buffers from which parameters are made; not what is read as NumPy arrays."""
    layer = nn.Linear(3, 2)
    layer.weight.detach().numpy()
    watch = _watch(layer)
    assert _shared(watch) == set()
    owner = make(np.ones(6, np.float32))
    layer.weight.data = torch.frombuffer(owner, dtype=torch.float32).view(2, 3)
    assert _shared(watch) == {"weight"}
    assert _shared(_watch(layer)) == {"weight"}


def test_memory_shared_with_other_processes_is_noticed() -> None:
    """They see updates as they happen."""
    layer = nn.Linear(3, 2)
    watch = _watch(layer)
    assert _shared(watch) == set()
    layer.share_memory()
    assert _shared(watch) == {"weight", "bias"}
