"""Law 1: weights equal those of plain training, bit-identical between ranks, on real processes."""

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
    train_case,
    train_cases,
    train_plainly,
)

SIZE = 2


def _cases() -> list[Case]:
    cases = [Case(optimizer=name, options={"order": "static"}) for name in ("sgd", "adam", "adamw")]
    cases += [
        Case(model=model, steps=8, options={"order": order, "mode": mode})
        for model in MODELS
        for order, mode in (("static", "overlap"), ("adaptive", "overlap"), ("auto", "barrier"))
    ]
    cases += [Case(model="branches", optimizer=name, steps=6) for name in OPTIMIZERS if name != "lbfgs"]
    return cases


def _with_schedule(case: Case) -> Case:
    schedule = shuffled_schedule(build(case.model), SIZE, seed=len(str(case)))
    return Case(
        model=case.model,
        optimizer=case.optimizer,
        steps=case.steps,
        options=case.options | {"schedule": schedule},
    )


@pytest.fixture(scope="module")
def trained(transport: str) -> dict[str, list[Weights]]:
    """Every case's weights on every rank: all cases share two processes, to start them only once."""
    cases = _cases()
    wrapped = [_with_schedule(case) for case in cases]
    backend = cast("Backend", transport)
    ranks = run_ranks(train_cases, SIZE, transport, wrapped, backend=backend, timeout_s=240)
    return {str(case): [rank[number] for rank in ranks] for number, case in enumerate(cases)}


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_weights_equal_plain_training(trained: dict[str, list[Weights]], case: Case) -> None:
    """Groups, cuts and order at random: the weights are still those of training without PACE."""
    ranks = trained[str(case)]
    assert difference(ranks[0], train_plainly(case, SIZE)) <= 1e-5
    assert all(equal_bits(ranks[0], rank) for rank in ranks[1:])


def _train_without_schedule(rank: int, _size: int, transport: str, case: Case) -> Any:
    return train_case(rank, transport, case)


def test_four_ranks_without_a_schedule(transport: str) -> None:
    """The plan that is computed here trains to the same weights, on four ranks."""
    case = Case(model="transformer", steps=8)
    ranks = run_ranks(_train_without_schedule, 4, transport, case, backend=cast("Backend", transport))
    assert difference(ranks[0], train_plainly(case, 4)) <= 1e-5
    assert all(equal_bits(ranks[0], rank) for rank in ranks[1:])
