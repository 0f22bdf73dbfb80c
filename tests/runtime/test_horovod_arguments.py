"""Horovod's own arguments: honoured as Horovod's own wrapper honours them, or refused with what to do."""

import copy
from typing import Any

import pytest
import torch

from pace.errors import PaceError
from pace.runtime.options import AllReduce, ShardingChoice
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
)

pytestmark = pytest.mark.horovod

STEPS = 5

# Per case: the model, and the arguments as somebody would give them to Horovod.
_HONOURED: dict[str, tuple[str, Any]] = {
    "nothing": ("conv", lambda _hvd, _model: ((), {})),
    "named": ("conv", lambda _hvd, model: ((model.named_parameters(),), {})),
    "by position": ("conv", lambda hvd, m: ((m.named_parameters(), hvd.Compression.none, 1, hvd.Sum), {})),
    "predivided": ("conv", lambda hvd, _model: ((), {"gradient_predivide_factor": 4.0, "op": hvd.Average})),
    "divided after": ("conv", lambda _hvd, _model: ((), {"gradient_predivide_factor": 1.0})),
    "halved": ("conv", lambda hvd, _model: ((), {"compression": hvd.Compression.fp16})),
    "halved, divided after": (
        "conv",
        lambda hvd, _model: ((), {"compression": hvd.Compression.fp16, "gradient_predivide_factor": 1.0}),
    ),
    "accumulated": ("conv", lambda _hvd, _model: ((), {"backward_passes_per_step": 2})),
    "num_groups": ("conv", lambda _hvd, _model: ((), {"num_groups": 2})),
    "groups": ("conv", lambda _hvd, model: ((), {"groups": [list(model.head.parameters())]})),
    "sparse": ("mixed", lambda _hvd, _model: ((), {"sparse_as_dense": True})),
}


def _train(rank: int, wrap_optimizer: Any, name: str, **extra: Any) -> Weights:
    import horovod.torch as hvd

    architecture, arguments = _HONOURED[name]
    model = build(architecture)
    given, named = arguments(hvd, model)
    passes = named.get("backward_passes_per_step", 1)
    extra = {key: model if key == "model" else value for key, value in extra.items()}
    # Horovod makes sparse gradients sparse again, which few optimizers take.
    inner = OPTIMIZERS["adagrad" if name == "sparse" else "sgd"](trainable(model))
    optimizer = wrap_optimizer(inner, *given, **named, **extra)
    shares = batches(architecture, STEPS * passes, rank)
    for step in range(STEPS):
        optimizer.zero_grad()
        for batch in shares[step * passes : (step + 1) * passes]:
            backward(model(*batch))
        optimizer.step()
    trained = weights(model)
    if extra:
        optimizer.close()
    return trained


def _compare_with_horovod(rank: int, _size: int) -> Any:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    ours = pace.runtime.horovod.DistributedOptimizer
    return {
        name: (
            _train(rank, ours, name, model=None, mode="overlap", timeout_s=60.0),
            _train(rank, hvd.DistributedOptimizer, name),
        )
        for name in _HONOURED
    }


def test_arguments_mean_what_they_mean_to_horovod() -> None:
    """The weights are those that ``hvd.DistributedOptimizer`` trains to with the same arguments."""
    first, second = run_ranks(_compare_with_horovod, 2, backend="horovod", timeout_s=240)
    for name, (ours, theirs) in first.items():
        near = 2e-3 if name == "halved" else 1e-5
        assert difference(ours, theirs) <= near, name
        assert equal_bits(ours, second[name][0]), name


_REFUSED: dict[str, tuple[Any, str]] = {
    "adasum": (lambda hvd, _model: {"op": hvd.Adasum}, "use hvd.Average or hvd.Sum"),
    "greatest": (lambda hvd, _model: {"op": hvd.Max}, "; hvd.Average, hvd.Sum, 'average' or 'sum' is needed"),
    "predivided sum": (
        lambda hvd, _model: {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        "which is for averages, and op is a sum",
    ),
    "no factor": (lambda _hvd, _model: {"gradient_predivide_factor": 0.0}, "a positive number is needed"),
    "own compressor": (
        lambda hvd, _model: {"compression": type("Own", (hvd.Compression.none,), {})},
        "compression is 'Own'; hvd.Compression.none",
    ),
    "bfloat16": (lambda _hvd, _model: {"compression": "bf16"}, "use fp16"),
    "unnamed": (
        lambda _hvd, model: {"named_parameters": model.head.named_parameters()},
        "lacks 6 of the optimizer's parameters",
    ),
    "named twice": (
        lambda _hvd, model: {"named_parameters": [("x", p) for p in model.parameters()]},
        "names x twice",
    ),
    "no pairs": (
        lambda _hvd, model: {"named_parameters": model.parameters()},
        "pairs of a name and a parameter",
    ),
    "no group": (lambda _hvd, _model: {"num_groups": -1}, "num_groups is -1; a whole number of at least 0"),
    "half a group": (lambda _hvd, _model: {"groups": 0.5}, "groups is 0.5; a whole number of at least 0"),
    "dense": (lambda _hvd, _model: {"sparse_as_dense": "no"}, "sparse_as_dense is 'no'; True or False"),
    "no text": (lambda _hvd, _model: {"gradient_predivide_factor": "2"}, "a positive number is needed"),
    "servers": (
        lambda _hvd, _model: {"communication": "servers"},
        "communication is of type str; over Horovod an AllReduce() is needed",
    ),
    "bfloat16 in an object": (
        lambda _hvd, _model: {"communication": AllReduce(compression="bf16")},
        "use fp16",
    ),
    "no plan": (lambda _hvd, _model: {"plan": "s.json"}, "a Plan, as in plan=Plan("),
    "schedule": (lambda _hvd, _model: {"schedule": "s.json"}, "give plan=Plan(schedule=...)"),
    "unknown set": (lambda hvd, _model: {"process_set": hvd.ProcessSet([0])}, "init(process_sets=[...])"),
}


def _train_in_sets(rank: int, _size: int) -> Any:
    import horovod.torch as hvd

    import pace.runtime.horovod

    pair, single = hvd.ProcessSet([1, 2]), hvd.ProcessSet([0])
    pace.runtime.horovod.init(process_sets=[pair, single])
    ours = pace.runtime.horovod.DistributedOptimizer
    refused = {}
    for name, (arguments, _) in _REFUSED.items():
        model = build("conv")
        try:
            ours(OPTIMIZERS["sgd"](trainable(model)), model=model, **arguments(hvd, model))
        except PaceError as error:
            refused[name] = str(error)
    model = build("conv")
    mine, other = (single, pair) if rank == 0 else (pair, single)
    try:
        ours(OPTIMIZERS["sgd"](trainable(model)), model=model, process_set=other)
    except PaceError as error:
        refused["foreign set"] = str(error)
    share = mine.rank()
    optimizer = ours(OPTIMIZERS["sgd"](trainable(model)), model=model, process_set=mine, mode="overlap")
    for batch in batches("conv", 20, share):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    hvd.barrier()  # a rank that ends takes Horovod down for all sets
    return refused, trained


def test_process_sets_train_apart_and_the_impossible_is_refused() -> None:
    """Two of three ranks train together, one alone; what cannot be done says what to do instead."""
    (refused, alone), (_, first), (_, second) = run_ranks(_train_in_sets, 3, backend="horovod", timeout_s=240)
    assert difference(alone, train_plainly(Case(), 1)) <= 1e-5
    assert difference(first, train_plainly(Case(), 2)) <= 1e-5
    assert equal_bits(first, second)
    for name, (_, said) in _REFUSED.items():
        assert said in refused[name], name
    assert "only its members wrap an optimizer for it" in refused["foreign set"]


def _resume(rank: int, _size: int, sharding: ShardingChoice) -> Any:
    """Rank 0 alone loads a checkpoint, and Horovod's own functions give it to the others."""
    import horovod.torch as hvd

    import pace.runtime.horovod

    pace.runtime.horovod.init()
    shares = batches("conv", 6, rank)
    saved: Any = None
    found: list[Weights] = []
    for steps in (shares, shares[3:]):
        model = build("conv")
        inner = torch.optim.AdamW(trainable(model), lr=0.01, weight_decay=0.1)
        optimizer = pace.runtime.horovod.DistributedOptimizer(
            inner, model=model, mode="overlap", communication=AllReduce(sharding=sharding)
        )
        if saved is not None:
            if rank == 0:
                model.load_state_dict(saved[0])
                if sharding == "off":
                    optimizer.load_state_dict(saved[1])
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            try:
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            except PaceError as error:
                return str(error)
        for step, batch in enumerate(steps):
            if saved is None and step == 3:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        found.append(weights(model))
        optimizer.close()
    return found


def test_horovods_own_way_to_resume_works_or_is_refused() -> None:
    """Training goes on as without a break; with sharded updates every rank is told to load the checkpoint."""
    for went_on, resumed in run_ranks(_resume, 2, "off", backend="horovod", timeout_s=240):
        assert equal_bits(went_on, resumed)
    for said in run_ranks(_resume, 2, "on", backend="horovod", timeout_s=240):
        assert "load the checkpoint by load_state_dict() on every rank" in said
