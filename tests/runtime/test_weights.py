"""Law 1: weights equal those of plain training, bit-identical between ranks, on real processes."""

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import pytest

from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import MODELS, build
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    difference,
    equal_bits,
    train_cases,
    train_plainly,
    train_with_ddp,
)

SIZE = 2


def _cases(transport: str) -> list[Case]:
    """Return what is trained; ``test_matrix`` has every optimizer over Horovod, too."""
    cases = [Case(optimizer=name, options={"order": "static"}) for name in ("sgd", "adam", "adamw")]
    cases += [
        Case(model=model, steps=8, options={"order": order, "mode": mode})
        for model in MODELS
        for order, mode in (("static", "overlap"), ("adaptive", "overlap"), ("auto", "barrier"))
    ]
    if transport == "gloo":
        cases += [Case(model="branches", optimizer=name, steps=6) for name in OPTIMIZERS if name != "lbfgs"]
    return cases


def _parameters() -> Iterator[Any]:
    for transport, marks in (("gloo", ()), ("horovod", (pytest.mark.horovod,))):
        for case in _cases(transport):
            yield pytest.param(transport, case, id=f"{transport}-{case}", marks=marks)


def _with_schedule(case: Case) -> Case:
    schedule = shuffled_schedule(build(case.model), SIZE, seed=len(str(case)))
    return Case(
        model=case.model,
        optimizer=case.optimizer,
        steps=case.steps,
        options=case.options | {"schedule": schedule},
    )


@cache
def _trained(transport: str) -> dict[str, list[Weights]]:
    """Every case's weights on every rank: all cases share two processes, to start them only once."""
    cases = _cases(transport)
    wrapped = [_with_schedule(case) for case in cases]
    backend = cast("Backend", transport)
    ranks = run_ranks(train_cases, SIZE, transport, wrapped, backend=backend, timeout_s=240)
    return {str(case): [rank[number] for rank in ranks] for number, case in enumerate(cases)}


@pytest.mark.parametrize(("transport", "case"), list(_parameters()), indirect=["transport"])
def test_weights_equal_plain_training(transport: str, case: Case) -> None:
    """Groups, cuts and order at random: the weights are still those of training without PACE."""
    ranks = _trained(transport)[str(case)]
    assert difference(ranks[0], train_plainly(case, SIZE)) <= 1e-5
    assert all(equal_bits(ranks[0], rank) for rank in ranks[1:])


# A key's bias has no gradient, as softmax does not see it: what arrives is rounding, which Adam scales up
# to whole steps. In float32 plain training differs by a tenth from itself with the ranks summed in the
# reverse order (and so does DDP); in float64 the rounding is far below Adam's epsilon.
_FOUR_RANKS = [
    Case(model="transformer", optimizer="sgd"),
    Case(model="transformer", optimizer="adam", double=True),
    Case(model="conv", optimizer="adam"),
    Case(model="recurrent", optimizer="adam", double=True),
    Case(model="branches", optimizer="adam"),
]


def _train_beside_ddp(rank: int, size: int, transport: str) -> tuple[list[Weights], list[Weights]]:
    ours = train_cases(rank, size, transport, _FOUR_RANKS)
    theirs = [train_with_ddp(rank, case) for case in _FOUR_RANKS] if transport == "gloo" else []
    return ours, theirs


def test_four_ranks_without_a_schedule_equal_plain_training_and_ddp(transport: str) -> None:
    """The plan that is computed here trains four ranks to plain training's weights, and to DDP's."""
    backend = cast("Backend", transport)
    ranks = run_ranks(_train_beside_ddp, 4, transport, backend=backend, timeout_s=240)
    (ours, theirs), *others = ranks
    for number, case in enumerate(_FOUR_RANKS):
        near = 1e-8 if case.double else 1e-5
        assert difference(ours[number], train_plainly(case, 4)) <= near, case
        assert all(equal_bits(ours[number], other[number]) for other, _ in others), case
        if theirs:
            assert difference(ours[number], theirs[number]) <= near, case
