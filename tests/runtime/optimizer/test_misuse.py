"""Calls that a wrapper cannot carry out: an error at once that says what to do instead."""

import collections
import copy
import io
from collections.abc import Callable
from typing import Any

import torch

from pace.errors import InvalidOptions, InvalidUse
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Weights,
    backward,
    difference,
    equal_bits,
    trainable,
    wrap,
)

STEPS = 3


def _refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except (InvalidUse, InvalidOptions) as error:
        return str(error)
    return "not refused"


def _misuse(rank: int, _size: int) -> Any:
    model = build("conv")
    inner = OPTIMIZERS["sgd"](trainable(model))
    optimizer = wrap("gloo", inner, model)
    shares = batches("conv", STEPS, rank)
    wrong: list[Any] = [model.state_dict, torch.optim.SGD]
    lazy, meta, other = torch.nn.LazyLinear(3), torch.nn.Linear(3, 3, device="meta"), build("conv")

    def train(by: torch.optim.Optimizer) -> None:
        for batch in shares:
            by.zero_grad()
            backward(model(*batch))
            by.step()

    def assign(name: str) -> None:
        setattr(optimizer, name, [])

    train(optimizer)
    refusals = {
        "deepcopy": _refusal(lambda: copy.deepcopy(optimizer)),
        "copy": _refusal(lambda: copy.copy(optimizer)),
        "save": _refusal(lambda: torch.save(optimizer, io.BytesIO())),
        "groups": _refusal(lambda: assign("param_groups")),
        "no group": _refusal(lambda: wrap("gloo", inner, model, process_group="all")),
        "no model": _refusal(lambda: wrap("gloo", inner, wrong[0])),
        "no optimizer": _refusal(lambda: wrap("gloo", wrong[1], model)),
        "lazy": _refusal(lambda: wrap("gloo", OPTIMIZERS["sgd"](list(lazy.parameters())), lazy)),
        "meta": _refusal(lambda: wrap("gloo", OPTIMIZERS["sgd"](list(meta.parameters())), meta)),
        "other": _refusal(lambda: wrap("gloo", OPTIMIZERS["sgd"](trainable(other)), model)),
        "wrapper": _refusal(lambda: wrap("gloo", optimizer, model)),
        "optimizer": _refusal(lambda: wrap("gloo", inner, model)),
        "model": _refusal(lambda: wrap("gloo", OPTIMIZERS["adam"](trainable(model)), model)),
        "around another": _refusal(lambda: wrap("gloo", _Lookahead(inner), model)),
    }
    optimizer.zero_grad()
    model(*shares[0]).backward(create_graph=True)
    refusals["graph"] = _refusal(lambda: [each.grad for each in trainable(model)])
    model.zero_grad()
    train(optimizer)  # still can
    optimizer.state = collections.defaultdict(dict)
    train(optimizer)
    trained = weights(model)
    saved = optimizer.state_dict()
    optimizer.close()
    refusals["closed"] = _refusal(optimizer.step)
    optimizer.zero_grad()
    optimizer.synchronize()
    assert optimizer.state_dict().keys() == saved.keys()
    inner.step()
    again = wrap("gloo", inner, model)
    train(again)
    again.close()
    return refusals, trained


class _Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, as many are published: it has none of torch's own attributes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.defaults = inner, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state


def _train_with_state_forgotten(size: int) -> Weights:
    model = build("conv")
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    shares = [batches("conv", STEPS, rank) for rank in range(size)]
    for pass_over_batches in range(3):
        if pass_over_batches == 2:
            optimizer.state = collections.defaultdict(dict)
        for step in range(STEPS):
            optimizer.zero_grad()
            for share in shares:
                backward(model(*share[step]) / size)
            optimizer.step()
    return weights(model)


_SAID = {
    "deepcopy": "copy or save what its state_dict() returns",
    "copy": "copy or save what its state_dict() returns",
    "save": "copy or save what its state_dict() returns",
    "groups": "change the groups in place",
    "no group": "process_group is 'all'; a torch.distributed.ProcessGroup is needed",
    "no model": "model is of type method; a torch.nn.Module is needed",
    "no optimizer": "optimizer is the class SGD; a torch.optim.Optimizer is needed",
    "lazy": "weight has no shape yet: give the model a batch before its optimizer is wrapped",
    "meta": "weight has no values yet: call to_empty() and initialize the model",
    "other": "give the model that it updates",
    "wrapper": "already wrapped: wrap the torch optimizer itself",
    "optimizer": "the optimizer is already wrapped: close() the wrapper",
    "model": "another optimizer that also updates features.0.weight, ",
    "around another": "_Lookahead does not call torch.optim.Optimizer.__init__: call it, or wrap",
    "graph": "read after backward(create_graph=True), but its average over ranks cannot be differentiated",
    "closed": "the wrapper was closed: step() the torch optimizer itself, or wrap it again",
}


def test_misuse_is_refused_at_once_and_harms_nothing() -> None:
    """Copying, pickling, wrapping twice, stepping after close(); a new ``state`` is adopted as by torch."""
    (first, trained), (second, other) = run_ranks(_misuse, 2)
    for refusals in (first, second):
        assert refusals.keys() == _SAID.keys()
        for name, said in _SAID.items():
            assert said in refusals[name], name
    assert equal_bits(trained, other)
    assert difference(trained, _train_with_state_forgotten(2)) <= 1e-5


def _regrouped(_rank: int, _size: int) -> list[tuple[str, str]]:
    """Change the parameters of wrapped optimizers, or their groups or dtype, and step."""

    def move(groups: list[dict[str, Any]]) -> None:
        groups[0]["params"].append(groups[1]["params"].pop())

    def swap(groups: list[dict[str, Any]]) -> None:
        groups[1]["params"][0] = torch.nn.Parameter(groups[1]["params"][0].detach().clone())

    def convert(groups: list[dict[str, Any]]) -> None:
        for parameter in groups[0]["params"]:
            parameter.data = parameter.data.double()

    refusals = []
    for change in (move, swap, list.reverse, convert):
        for options in ({"mode": "overlap"}, {"mode": "barrier"}, {"mode": "overlap", "sharding": "on"}):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
            own, other = list(model[0].parameters()), list(model[1].parameters())
            groups: list[dict[str, Any]] = [{"params": own}, {"params": other, "lr": 0.5}]
            inner = torch.optim.SGD(groups, lr=0.1)
            optimizer = wrap("gloo", inner, model, **options)
            backward(model(torch.ones(3, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()
            change(inner.param_groups)
            refusals.append((change.__name__, _refusal(optimizer.step)))
            optimizer.close()
    return refusals


def test_changed_groups_and_dtypes_are_refused() -> None:
    """A step after a move between groups would use the hyper-parameters of the parameter's old group."""
    for refusals in run_ranks(_regrouped, 2):
        assert len(refusals) == 12
        for change, said in refusals:
            converted = "was torch.float32 on cpu when the optimizer was wrapped"
            assert (converted if change == "convert" else "others in a group") in said, change
