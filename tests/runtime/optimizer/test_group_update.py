"""Updates of one group at a time, against the same optimizer's own step."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pace.runtime.control.parameters import gradient_sizes
from pace.runtime.engine.buffers import FusedGroup, build_groups
from pace.runtime.engine.plan import plan_locally
from pace.runtime.optimizer.group_update import GroupUpdate, full_name, why_not_per_group
from pace.runtime.optimizer.shards.shard_update import why_not_elementwise

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw, fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
}


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def _param_groups(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": list(model[0].parameters())}, {"params": list(model[1].parameters()), "lr": 0.05}]


def _groups(model: nn.Module) -> list[FusedGroup]:
    parameters = dict(model.named_parameters())
    # A weight and a bias of two layers share a group, so it has members of both parameter groups.
    plan = plan_locally(gradient_sizes(parameters), max_group_bytes=50)
    groups = build_groups(plan, parameters, num_ranks=1)
    assert len(groups) > 1
    return groups


def _fill(groups: list[FusedGroup], seed: int, absent: str = "") -> dict[str, torch.Tensor | None]:
    """Put random gradients into the buffers, but for one; return them by name."""
    generator = torch.Generator().manual_seed(seed)
    gradients: dict[str, torch.Tensor | None] = {}
    for group in groups:
        for slot in group.slots:
            slot.present = slot.base = slot.name != absent
            value = torch.randn(slot.view.shape, generator=generator)
            slot.view.copy_(value)
            gradients[slot.name] = value if slot.present else None
    return gradients


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: dict[str, Any]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    optimizer.step()


def _assert_equal(model: nn.Module, reference: nn.Module) -> None:
    for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_in_any_order_make_the_optimizers_own_step(name: str) -> None:
    """Three steps, a parameter without a gradient in one of them; weights and state have the same bits."""
    model = _model()
    reference = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](_param_groups(model))
    expected = OPTIMIZERS[name](_param_groups(reference))
    groups = _groups(model)
    update = GroupUpdate(optimizer, groups)
    for number in range(3):
        gradients = _fill(groups, number, absent="1.bias" if number == 1 else "")
        update.snapshot()
        for group in reversed(groups) if number % 2 else groups:
            update.apply(group.number)
        _step(reference, expected, gradients)
        _assert_equal(model, reference)
    for mine, other in zip(optimizer.state.values(), expected.state.values(), strict=False):
        assert mine.keys() == other.keys()
    assert len(optimizer.state) == len(expected.state) == 4


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_an_update_uses_the_hyper_parameters_of_its_snapshot(tensor: bool) -> None:
    """A scheduler that changes the learning rate afterwards, a tensor in place too, changes nothing of it."""
    model = _model()
    reference = copy.deepcopy(model)

    def make(of: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(of.parameters(), lr=torch.tensor(0.01) if tensor else 0.01)

    optimizer, expected = make(model), make(reference)
    groups = _groups(model)
    update = GroupUpdate(optimizer, groups)
    gradients = _fill(groups, 0)
    update.snapshot()
    if tensor:
        optimizer.param_groups[0]["lr"].fill_(100.0)
    else:
        optimizer.param_groups[0]["lr"] = 100.0
    for group in groups:
        update.apply(group.number)
    _step(reference, expected, gradients)
    _assert_equal(model, reference)


def test_gradients_are_where_torch_keeps_them_only_meanwhile() -> None:
    """After the update no parameter holds a gradient of its own."""
    model = _model()
    groups = _groups(model)
    update = GroupUpdate(torch.optim.SGD(model.parameters(), lr=0.1), groups)
    _fill(groups, 0)
    update.snapshot()
    for group in groups:
        update.apply(group.number)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_optimizers_that_look_at_all_gradients_are_known() -> None:
    """LBFGS searches along one line for all parameters; a subclass with its own method may do anything."""

    class _Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class _Collecting(torch.optim.SGD):
        def _init_group(self, *lists: Any) -> Any:  # may scale by the group's norm
            return super()._init_group(*lists)  # type: ignore[no-untyped-call]

    model = _model()
    assert why_not_per_group(torch.optim.AdamW(model.parameters())) is None
    kinds: list[Any] = [torch.optim.LBFGS, _Own, _Collecting]
    for kind in kinds:
        optimizer = kind(model.parameters(), lr=0.1)
        assert full_name(optimizer) in (why_not_per_group(optimizer) or "")
        assert full_name(optimizer) in (why_not_elementwise(optimizer) or "")


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw, fused", "adagrad"])
def test_a_compiler_in_the_process_changes_no_optimizers_rule(name: str) -> None:
    """It wraps methods of torch's optimizers when it is first used, before or after wrappers were made."""
    torch.compile(lambda number: number + 1, backend="eager")(torch.ones(1))
    assert hasattr(torch.optim.AdamW._init_group, "_torchdynamo_orig_callable")
    optimizer = OPTIMIZERS[name](_model().parameters())
    assert why_not_per_group(optimizer) is None
    assert why_not_elementwise(optimizer) is None
