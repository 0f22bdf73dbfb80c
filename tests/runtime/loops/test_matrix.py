"""Every model with every optimizer, features in turn: weights of plain training, and of DDP.

What ``test_weights`` varies one at a time is varied here together. In float64, so that what rounding leaves
of a gradient that is zero is far below every optimizer's epsilon.
"""

import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.runtime.launch import Backend, run_ranks
from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_features import MANNERS, Lesson
from tests.runtime.models import MODELS, build
from tests.runtime.rank_pool import RankPool
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    Weights,
    difference,
    equal_bits,
    train_case,
    train_plainly,
    train_with_ddp,
)

SIZE = 2
STEPS = 4

# Ten by seventeen pairs over eleven features: each meets every model and every optimizer.
_FEATURES: list[dict[str, Any]] = [
    {"order": "static"},
    {"order": "adaptive"},
    {"order": "priority"},
    {"order": "static", "credit_bytes": 0},
    {"order": "adaptive", "credit_bytes": 0},
    {"order": "priority", "credit_bytes": 1 << 30},
    {"mode": "barrier"},
    {"mode": "barrier", "order": "adaptive"},
    {"mode": "auto"},
    {"seed": 1},
    {"seed": 2, "order": "priority"},
]

# Without parameters that some or all ranks leave unused, which DDP does not update.
_DDP_MODELS = ("conv", "transformer", "recurrent")


def _cases(transport: str) -> list[tuple[Case, int | None]]:
    """Return what is trained: every second pair over Horovod, of all models, optimizers and features.

    Gloo has the others; all pairs where Horovod is not installed.
    """
    pairs = itertools.product(MODELS, [name for name in OPTIMIZERS if name != "lbfgs"])
    cases = []
    for (model, optimizer), feature in zip(pairs, itertools.cycle(_FEATURES), strict=False):
        options = dict(feature)
        seed = options.pop("seed", None)
        # In float64 throughout, "mixed" would be of one dtype.
        double = model != "mixed"
        case = Case(model=model, optimizer=optimizer, steps=STEPS, options=options, double=double)
        cases.append((case, seed))
    if importlib.util.find_spec("horovod") is None:
        return cases
    return cases[::2] if transport == "horovod" else cases[1::2]


def _train_all(rank: int, size: int, transport: str) -> list[tuple[Weights, Weights | None]]:
    found = []
    for case, seed in _cases(transport):
        options = dict(case.options)
        if seed is not None:
            options["schedule"] = shuffled_schedule(build(case.model, double=case.double), size, seed)
        scheduled = Case(
            model=case.model, optimizer=case.optimizer, steps=STEPS, options=options, double=case.double
        )
        beside_ddp = transport == "gloo" and case.model in _DDP_MODELS
        found.append(
            (train_case(rank, transport, scheduled), train_with_ddp(rank, case) if beside_ddp else None)
        )
    return found


@pytest.mark.slow
def test_every_model_trains_with_every_optimizer(transport: str) -> None:
    """A hundred and seventy pairs, half over each transport: weights of plain training and of DDP.

    They are the same bits on both ranks.
    """
    ranks = run_ranks(_train_all, SIZE, transport, backend=cast("Backend", transport), timeout_s=280)
    for (case, _), (ours, theirs), (others, _) in zip(_cases(transport), *ranks, strict=True):
        near = 1e-8 if case.double else 1e-5
        assert equal_bits(ours, others), case
        assert difference(ours, train_plainly(case, SIZE)) <= near, case
        if theirs is not None:
            assert difference(ours, theirs) <= near, case


def _lessons() -> list[Lesson]:
    optimizers = itertools.cycle(name for name in OPTIMIZERS if name not in ("lbfgs", "sgd-fused"))
    lessons = []
    for (manner, model), feature in zip(
        itertools.product(MANNERS, MODELS), itertools.cycle(_FEATURES), strict=False
    ):
        options = dict(feature)
        plan = options.pop("seed", None)
        lessons.append(
            Lesson(manner=manner, model=model, optimizer=next(optimizers), plan=plan, options=options)
        )
    return lessons


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """Ranks over Gloo, which train plainly too."""
    with RankPool(SIZE) as pool:
        yield pool


@pytest.fixture(scope="module")
def pool(transport: str, gloo: RankPool) -> Iterator[RankPool]:
    """Ranks that train under the runtime."""
    if transport == "gloo":
        yield gloo
        return
    with RankPool(SIZE, backend=cast("Backend", transport)) as ranks:
        yield ranks


def _taught() -> Iterator[Any]:
    """Yield all lessons over Gloo, and over Horovod half of each manner's and of each model's."""
    for number, lesson in enumerate(_lessons()):
        yield pytest.param("gloo", lesson, id=f"gloo-{lesson}")
        if (number // len(MODELS) + number) % 2 == 0:
            yield pytest.param("horovod", lesson, id=f"horovod-{lesson}", marks=pytest.mark.horovod)


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "lesson"), list(_taught()), indirect=["transport"])
def test_every_model_trains_in_every_manner(gloo: RankPool, pool: RankPool, lesson: Lesson) -> None:
    """Sixty pairs, over Horovod half: what the loop sees and its weights are those of averaging by hand."""
    assert_trains_as_plainly(gloo, lesson, under=pool, steps=6, mode="overlap")
