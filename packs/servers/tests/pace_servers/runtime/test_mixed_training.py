"""Jobs that push some gradients to parameter servers and all-reduce the others."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from pace.errors import InvalidOptions
from pace_servers.runtime.options import Mixed, pushed_gradients
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
    wrap,
)

SIZE = 3

CASES = [
    Case(model="transformer", optimizer="sgd", steps=5, double=True),
    Case(model="conv", optimizer="sgd", steps=5, double=True, options={"pushed": ["head.*"]}),
    Case(
        model="conv",
        optimizer="sgd",
        steps=5,
        double=True,
        options={"pushed": ["features.0.*", "head.bias"], "order": "priority", "mode": "barrier"},
    ),
    Case(model="branches", optimizer="adamw", steps=5, double=True, options={"pushed": ["*.bias"]}),
]


def _train(rank: int, _size: int, cases: list[Case]) -> list[tuple[Weights, set[str], list[str]]]:
    found = []
    for case in cases:
        model = build(case.model, double=case.double)
        optimizer = wrap(
            "gloo", OPTIMIZERS[case.optimizer](trainable(model)), model, over="mixed", **case.options
        )
        for batch in batches(case.model, case.steps, rank, double=case.double):
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        trained = weights(model)
        places = set(optimizer._transport._exchanges)
        pushed = {
            name
            for number, group in enumerate(optimizer._plan.groups)
            if any(place.startswith(f"pace.1.{number}.") for place in places)
            for name in group.gradients
        }
        threads = [t.name for t in threading.enumerate() if t.name.startswith("pace.1.engine")]
        optimizer.close()
        found.append((trained, pushed, sorted(threads)))
    return found


def test_weights_equal_plain_training_with_both_ways_at_once() -> None:
    """Weights of plain training, equal bits on all ranks; what was named, and that alone, was pushed."""
    ranks = run_ranks(_train, SIZE, CASES)
    wanted = [
        {"embed.weight"},
        {"head.weight", "head.bias"},
        {"features.0.weight", "features.0.bias", "head.bias"},
        None,
    ]
    for number, case in enumerate(CASES):
        trained = [each[number][0] for each in ranks]
        assert difference(trained[0], train_plainly(case, SIZE)) < 1e-12, case
        assert all(equal_bits(trained[0], other) for other in trained[1:]), case
        _, pushed, threads = ranks[0][number]
        assert wanted[number] in (None, pushed)
        assert threads == ["pace.1.engine.segments", "pace.1.engine.servers"]


def test_what_is_pushed_is_said_by_name_or_is_what_embeds() -> None:
    """Tables of embeddings by default, patterns otherwise; what matches nothing is an error."""
    model = nn.Sequential(nn.Embedding(3, 2), nn.EmbeddingBag(3, 2), nn.Linear(2, 2))
    assert pushed_gradients(model, None) == ("0.weight", "1.weight")
    assert pushed_gradients(model, ["2.*"]) == ("2.bias", "2.weight")
    wrongs: list[tuple[nn.Module, Any, str]] = [
        (nn.Linear(2, 2), None, "has no embedding"),
        (model, ["3.*"], "'3.*': the model has no such gradient"),
        (model, [2], "the model has no such gradient"),
    ]
    for wrong, patterns, message in wrongs:
        with pytest.raises(InvalidOptions, match=message.replace("*", r"\*")):
            pushed_gradients(wrong, patterns)
    nothings: tuple[Any, ...] = ("2.*", [], 2)
    for nothing in nothings:
        with pytest.raises(InvalidOptions, match="a list of gradients' names is needed"):
            Mixed(pushed=nothing)


def _refusals(_rank: int, _size: int) -> list[str]:
    from pace.runtime.torch import DistributedOptimizer
    from pace_servers.runtime import asynchronous

    found = []
    wrongs: tuple[dict[str, Any], ...] = (
        {"pushed": ["head.*"]},
        {"communication": Mixed(pushed=["tail.*"])},
        {"communication": Mixed(pushed=["head.*"]), "staleness": 1},
    )
    for wrong in wrongs:
        model = build("conv")
        try:
            wrap = asynchronous if "staleness" in wrong else DistributedOptimizer
            wrap(torch.optim.SGD(trainable(model), lr=0.1), model, timeout_s=20.0, **wrong)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_wrong_arguments_are_refused_on_all_ranks() -> None:
    """Nothing hangs, and the message names the argument."""
    for found in run_ranks(_refusals, 2):
        assert [each.partition(":")[0] for each in found] == ["InvalidOptions"] * 3
        assert "give communication=pace_servers.runtime.Mixed(pushed=...)" in found[0]
        assert "'tail.*'" in found[1]
        assert "ParameterServers() is needed" in found[2]
