"""What the runtime replaces in torch: functions of its modules and methods of its tensors."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.rank_pool import RankPool
from tests.runtime.training import backward, wrap


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """One rank in which nothing was wrapped before."""
    with RankPool(1) as ranks:
        yield ranks


def _functions() -> dict[str, Any]:
    spaces = {name: vars(module) for name, module in sys.modules.items() if name.split(".")[0] == "torch"}
    spaces |= {f"torch:{kind.__name__}": dict(vars(kind)) for kind in (torch.Tensor, nn.Module)}
    spaces["torch:Optimizer"] = dict(vars(torch.optim.Optimizer))
    return {
        f"{space}:{name}": value
        for space, values in spaces.items()
        for name, value in list(values.items())
        if callable(value)
    }


def replaced(_rank: int, mode: str) -> list[str]:
    """Train; return the functions that are others than before."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model(torch.ones(1, 3)).sum())
    before = _functions()
    with wrap("gloo", inner, model, mode=mode) as optimizer:
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(torch.ones(1, 3)).sum())
            optimizer.step()
            model.state_dict()
    return sorted(name for name, value in _functions().items() if before.get(name, value) is not value)


def test_the_runtime_replaces_few_functions_of_torch(pool: RankPool) -> None:
    """Two in each mode, and one to check what is saved: each may change with the next torch."""
    always = ["torch.autograd:_engine_run_backward", "torch.jit._recursive:create_script_module"]
    assert pool.results(replaced, "overlap") == [always]
    assert pool.results(replaced, "check") == [["torch.serialization:_save"]]
