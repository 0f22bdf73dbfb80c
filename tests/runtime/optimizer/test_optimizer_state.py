"""The optimizer's state is the same on all ranks and what the loop believes it to be; else it is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from tests.runtime.models import batches, build
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap


def _train(model: Any, optimizer: Any, rank: int, steps: int = 1) -> None:
    for batch in batches("conv", steps, rank):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()


def _checkpoint() -> Any:
    model = build("conv")
    optimizer = OPTIMIZERS["adamw"](trainable(model))
    _train(model, optimizer, 0, steps=2)
    return optimizer.state_dict()


def _made(rank: int, **options: Any) -> tuple[Any, Any]:
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["adamw"](trainable(model)), model, **options)
    _train(model, optimizer, rank)
    return model, optimizer


def _loaded_before(rank: int, alone: int, **options: Any) -> None:
    model = build("conv")
    inner = OPTIMIZERS["adamw"](trainable(model))
    if rank == alone:
        inner.load_state_dict(_checkpoint())
    wrap("gloo", inner, model, **options).close()


def _loaded_after(rank: int, alone: int, **options: Any) -> None:
    model, optimizer = _made(rank, **options)
    if rank == alone:
        optimizer.load_state_dict(_checkpoint())
    _train(model, optimizer, rank)
    optimizer.synchronize()


def _other_entry(rank: int, _alone: int, **options: Any) -> None:
    model, optimizer = _made(rank, **options)
    state = copy.deepcopy(optimizer.state_dict())
    if rank:
        state["state"][0]["exp_avg"].view(-1)[0] += 1e-3
    optimizer.load_state_dict(state)
    _train(model, optimizer, rank)
    optimizer.synchronize()


def _other_rate(rank: int, _alone: int, **options: Any) -> None:
    model, optimizer = _made(rank, **options)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] *= 1 + rank
    optimizer.load_state_dict(state)
    _train(model, optimizer, rank)
    optimizer.synchronize()


_BY_RANK: dict[str, tuple[Callable[..., None], int, str]] = {
    "rank 0 loads, then all wrap": (_loaded_before, 0, "rank 0 has step of "),
    "rank 1 loads, then all wrap": (_loaded_before, 1, "rank 1 has step of "),
    "rank 0 loads later": (_loaded_after, 0, " than rank 0"),
    "rank 1 loads later": (_loaded_after, 1, " than rank 0"),
    "one entry differs": (_other_entry, 0, "rank 1 has another exp_avg of "),
    "a rate differs": (_other_rate, 0, "rank 1 has another lr of parameter group 0"),
}


def _said(call: Callable[[], Any]) -> str:
    try:
        call()
    except (InvalidUse, InvalidOptions) as error:
        return str(error)
    return "not refused"


def _try_by_rank(rank: int, name: str, options: dict[str, Any]) -> str:
    attempt, alone, _ = _BY_RANK[name]
    return _said(lambda: attempt(rank, alone, **options))


@pytest.mark.parametrize("options", [{"mode": "overlap"}, {"mode": "barrier"}, {"sharding": "on"}], ids=str)
@pytest.mark.parametrize("name", _BY_RANK)
def test_ranks_with_different_state_are_refused(pool: RankPool, name: str, options: dict[str, Any]) -> None:
    """Weights would differ between ranks from the next step on; each says which entry and what to do."""
    for said in pool.results(_try_by_rank, name, options):
        assert "the optimizer's state differs between ranks" in said
        lacking = options == {"sharding": "on"} and name.endswith("later")
        assert (" has none" if lacking else _BY_RANK[name][2]) in said
        assert "load the same checkpoint by load_state_dict() on every rank" in said


def _replace_parameters(rank: int) -> str:
    model, optimizer = _made(rank)
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()}, assign=True)
    return _said(lambda: _train(model, optimizer, rank))


def _remove_layer(_rank: int) -> str:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), model)
    del model[1]
    model(torch.ones(1, 2)).sum().backward()
    said = _said(optimizer.step)
    optimizer.close()
    return said


def test_replaced_parameters_are_refused(pool: RankPool) -> None:
    """The optimizer would update tensors that the model no longer uses; a removed layer is no fault."""
    assert all("wrap the optimizer after" in said for said in pool.results(_replace_parameters))
    assert pool.results(_remove_layer) == ["not refused"] * 2


def _wide_gradients(_rank: int) -> str:
    model = nn.Linear(4, 2).bfloat16()
    model.weight.grad_dtype = torch.float32
    return _said(lambda: wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), model))


@pytest.mark.skipif(not hasattr(torch.zeros(1), "grad_dtype"), reason="this torch has no grad_dtype")
def test_gradients_of_another_dtype_are_refused(pool: RankPool) -> None:
    """Before the first step, where torch itself would fail or values be rounded."""
    for said in pool.results(_wide_gradients):
        assert "weight is torch.bfloat16 and its grad_dtype is torch.float32" in said


def _use_copies(rank: int) -> dict[str, str]:
    said = {}
    for how in ("change", "load", "load twice", "load at once", "deep copy"):
        model, optimizer = _made(rank, sharding="on")
        state = optimizer.state_dict()
        kept = copy.deepcopy(state) if how in ("load twice", "deep copy") else state
        if how == "change":
            state["state"][0]["exp_avg"].zero_()
        if how == "load at once":
            optimizer.load_state_dict(state)
        said[how] = _said(lambda: _train(model, optimizer, rank))  # noqa: B023  # called at once
        for _ in range(2 if how == "load twice" else how in ("load", "deep copy")):
            found = _said(lambda: optimizer.load_state_dict(kept))  # noqa: B023  # called at once
            said[how] = found if found != "not refused" else said[how]
            if found == "not refused":
                _train(model, optimizer, rank)
        if said[how] == "not refused":
            optimizer.close()
    return said


def test_copies_of_sharded_state_are_not_taken_for_the_state(pool: RankPool) -> None:
    """What torch's ``state_dict()`` would do as a live view is refused, and what a copy does works."""
    for said in pool.results(_use_copies):
        assert "with sharded updates it is a copy: change optimizer.state" in said["change"]
        assert "keep copy.deepcopy(optimizer.state_dict())" in said["load"]
        assert "load copies of it by copy.deepcopy()" in said["load twice"]
        assert said["load at once"] == said["deep copy"] == "not refused"
