"""Laws 1 to 4 where updates are sharded: weights, norms, state and readings of plain training."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.runtime.capture.update_rule import UpdateRuleWatch
from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_features import MANNERS, Lesson
from tests.runtime.models import MODELS, batches, build, weights
from tests.runtime.rank_pool import RankPool
from tests.runtime.shards.jobs import halves_schedule, train_by_shards, train_with_ddp_and_clip
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    meet,
    train_case,
    train_plainly,
    trainable,
    wrap,
)

SIZE = 3
LONG = ("sgd", "adamw")
ELEMENTWISE = [name for name in OPTIMIZERS if name not in ("lbfgs", "adafactor")]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks over Gloo that stay for all tests."""
    with RankPool(SIZE) as ranks:
        yield ranks


def _beside_ddp(rank: int) -> list[Any]:
    found = []
    for number, name in enumerate(ELEMENTWISE):
        # Without clipping, with a bound that every step exceeds, and one that few do.
        max_norm = (None, 0.05, 1.5)[number % 3]
        steps = 30 if name in LONG else 6
        options: dict[str, Any] = {"order": ("static", "adaptive", "priority")[number % 3]}
        if number % 2:
            options["schedule"] = halves_schedule(build("conv", double=True), SIZE, number)
        ours = train_by_shards(rank, "gloo", "conv", name, steps=steps, max_norm=max_norm, **options)
        theirs = train_with_ddp_and_clip(rank, "conv", name, steps=steps, max_norm=max_norm)
        found.append((name, ours, theirs))
    return found


@pytest.mark.slow
def test_thirty_steps_equal_ddp_with_torchs_clipping(pool: RankPool) -> None:
    """Every elementwise optimizer: DDP's weights and torch's norms; the same bits on all ranks."""
    ranks = pool.results(_beside_ddp)
    for number, (name, (ours, norms), (theirs, expected)) in enumerate(ranks[0]):
        assert difference(ours, theirs) <= 1e-8, name
        np.testing.assert_allclose(norms, expected, rtol=1e-6, err_msg=name)
        assert all(equal_bits(ours, other[number][1][0]) for other in ranks), name
        assert all(norms == other[number][1][1] for other in ranks), name


def _single_precision(rank: int) -> Any:
    ours = train_by_shards(rank, "gloo", "recurrent", "adamw", steps=30, max_norm=0.5, double=False)
    return ours, train_with_ddp_and_clip(rank, "recurrent", "adamw", steps=30, max_norm=0.5, double=False)


def test_norms_of_float32_are_torchs(pool: RankPool) -> None:
    """The returned norm is torch's within 1e-6 in single precision, too."""
    (ours, norms), (theirs, expected) = pool.results(_single_precision)[0]
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    assert difference(ours, theirs) <= 1e-4


def _lessons() -> list[Lesson]:
    """Every model in every manner; optimizers, schedules, orders and credits in turn."""
    # A key's bias has no gradient but rounding, which these two make whole steps of; fused SGD as they are.
    unfit = ("rprop", "adagrad", "adagrad-fused", "sgd-fused")
    optimizers = itertools.cycle(name for name in ELEMENTWISE if name not in unfit)
    options: Iterator[dict[str, Any]] = itertools.cycle(
        [{"order": "static"}, {"order": "adaptive"}, {"order": "priority"}, {"credit_bytes": 0}]
    )
    return [
        Lesson(
            manner=manner,
            model=model,
            optimizer=next(optimizers),
            options=next(options) | {"sharding": "on"},
        )
        for manner, model in itertools.product(MANNERS, MODELS)
        if manner.__name__ != "by_module"  # which reads gradients after step()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_manners_of_training_by_shards(pool: RankPool, part: int) -> None:
    """Accumulation, scalers that overflow on one rank, freezing, idle ranks, gradients never cleared."""
    for lesson in _lessons()[part::3]:
        assert_trains_as_plainly(pool, lesson, steps=6)


def _unused(rank: int, transport: str) -> Any:
    found = []
    for model in ("branches", "mixed", "experts", "strided"):
        case = Case(
            model=model, optimizer="adamw", steps=6, options={"sharding": "on"}, double=model != "mixed"
        )
        found.append((case, train_case(rank, transport, case)))
    case = Case(
        model="conv", optimizer="adam", steps=30, options={"sharding": "auto", "mode": "auto"}, double=True
    )
    found.append((case, train_case(rank, transport, case)))
    return found


def test_unused_frozen_shared_and_mixed_parameters(pool: RankPool) -> None:
    """Parameters that no rank used, two dtypes, tied weights, strides; and a trial of all ways of running."""
    ranks = pool.results(_unused, "gloo")
    for number, (case, ours) in enumerate(ranks[0]):
        assert difference(ours, train_plainly(case, SIZE)) <= (1e-8 if case.double else 1e-4), case
        assert all(equal_bits(ours, other[number][1]) for other in ranks), case


@pytest.mark.horovod
def test_training_by_shards_over_horovod(transport: str) -> None:
    """Horovod's own halves: the weights of plain training."""
    if transport != "horovod":
        pytest.skip("covered by the other tests")
    with RankPool(2, backend="horovod") as ranks:
        found = ranks.results(_unused, "horovod")
        (saved, *_), (none, *_) = ranks.results(_state, "horovod")
    assert none is None
    assert len(saved[0]["state"]) == len(trainable(build("conv")))
    for number, (case, ours) in enumerate(found[0]):
        assert difference(ours, train_plainly(case, 2)) <= (1e-8 if case.double else 1e-4), case
        assert equal_bits(ours, found[1][number][1]), case


def _clip_at_step(rank: int) -> Any:
    """``max_grad_norm`` in each mode, and torch's own call, which gathers gradients."""
    found = []
    for options in (
        {"sharding": "on"},
        {"mode": "overlap"},
        {"mode": "barrier"},
    ):
        model = build("conv", double=True)
        optimizer = wrap("gloo", OPTIMIZERS["adam"](trainable(model)), model, max_grad_norm=0.3, **options)
        for batch in batches("conv", 8, rank, double=True):
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        found.append(weights(model))
        optimizer.close()
    model = build("conv", double=True)
    optimizer = wrap("gloo", OPTIMIZERS["adam"](trainable(model)), model, sharding="on")
    for batch in batches("conv", 8, rank, double=True):
        optimizer.zero_grad()
        backward(model(*batch))
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    found.append(weights(model))
    optimizer.close()
    return found, train_with_ddp_and_clip(rank, "conv", "adam", steps=8, max_norm=0.3)[0]


def test_every_way_of_clipping_gives_the_same_weights(pool: RankPool) -> None:
    """``max_grad_norm`` by shards, with overlap and with a barrier; torch's own function by shards."""
    for found, expected in pool.results(_clip_at_step):
        assert all(difference(each, expected) <= 1e-8 for each in found)


def _overflow(rank: int) -> Any:
    found = []
    for options in ({"sharding": "on"}, {"mode": "overlap"}, {"mode": "barrier"}):
        for poison in (float("inf"), float("nan")):
            model = build("conv", double=True)
            optimizer = wrap(
                "gloo", OPTIMIZERS["adam"](trainable(model)), model, max_grad_norm=1.0, **options
            )
            seen = []
            for step, batch in enumerate(batches("conv", 4, rank, double=True)):
                optimizer.zero_grad()
                backward(model(*batch) * (poison if step == 2 and rank == 1 else 1.0))
                optimizer.step()
                seen.append(weights(model))
            state = optimizer.state_dict()["state"]
            found.append((seen, {int(entry["step"]) for entry in state.values()}))
            optimizer.close()
    return found


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(pool: RankPool) -> None:
    """Parameters and optimizer state stay as they are in that step, and training goes on."""
    for found in pool.results(_overflow):
        for seen, steps in found:
            assert equal_bits(seen[1], seen[2])
            assert not equal_bits(seen[2], seen[3])
            assert all(np.isfinite(value).all() for value in seen[3].values())
            assert steps == {3}


def _misuse(rank: int) -> Any:
    said: list[str | None] = []
    for how in ("read after step", "one rank clips", "one rank clears"):
        model: Any = build("conv", double=True)
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, sharding="on")
        try:
            for batch in batches("conv", 2, rank, double=True):
                if how != "one rank clears" or rank:
                    optimizer.zero_grad()
                backward(model(*batch))
                if how == "one rank clips":
                    optimizer.clip_grad_norm_(0.1 if rank else 0.2)
                optimizer.step()
                if how == "read after step":
                    assert model.head.weight.grad is not None
            said.append(None)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        optimizer.close()
    return said


def test_what_would_go_wrong_is_refused_on_every_rank(pool: RankPool) -> None:
    """Gradients read when no rank has them, ranks that clip or clear differently."""
    for read, clipped, cleared in pool.results(_misuse):
        assert "was read after step()" in read
        assert "InvalidUse: ranks have clipped or unscaled their gradients differently" in clipped
        assert "was cleared on some ranks but not on others" in cleared


def _state(rank: int, transport: str) -> Any:
    """Train, save on rank 0 alone while the others go on, and say how much state each rank has."""
    model = build("conv", double=True)
    optimizer = wrap(transport, OPTIMIZERS["adamw"](trainable(model)), model, sharding="on")
    saved = None
    for step, batch in enumerate(batches("conv", 8, rank, double=True)):
        if step == 4 and rank == 0:
            saved = optimizer.state_dict(), {n: t.clone() for n, t in model.state_dict().items()}
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    mine = optimizer._rounds.num_state_bytes
    elements = sum(parameter.numel() for parameter in trainable(model))
    whole = sum(
        t.numel() * 8 for s in optimizer.state_dict()["state"].values() for t in s.values() if t.dim()
    )
    inner = dict.__len__(optimizer.optimizer.state)  # past its gate, which would put it together
    optimizer.close()
    after_close = len(optimizer.optimizer.state)
    return saved, mine, elements, whole, inner, after_close


def _resume(rank: int, saved: Any, size: int) -> Any:
    """Go on from a checkpoint with other batches; of whatever number of ranks."""
    model = build("conv", double=True)
    state, tensors = saved
    model.load_state_dict(tensors)
    optimizer = wrap(
        "gloo", OPTIMIZERS["adamw"](trainable(model)), model, sharding="on" if size > 1 else "off"
    )
    optimizer.load_state_dict(state)
    shares = [batches("conv", 3, number, double=True) for number in range(6)]
    for step in range(3):
        optimizer.zero_grad()
        for number in range(rank, 6, size):
            backward(model(*shares[number][step]) * (size / 6))
        optimizer.clip_grad_norm_(0.2)
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained


def test_state_is_a_share_and_checkpoints_hold_at_any_number_of_ranks(pool: RankPool) -> None:
    """Rank 0 saves alone; three, two and one rank go on alike; each rank holds a third of the state."""
    ranks = pool.results(_state, "gloo")
    saved = ranks[0][0]
    for _, mine, elements, whole, inner, after_close in ranks:
        # Three tensors of float64 for each element, and a number for each piece; padding is below that.
        assert 3 * 8 * elements / SIZE * 0.9 < mine < 3 * 8 * elements / SIZE * 1.1
        assert whole == 3 * 8 * elements
        assert inner == 0
        assert after_close > 0
    three = pool.results(_resume, saved, SIZE)
    with RankPool(2) as two_ranks:
        two = two_ranks.results(_resume, saved, 2)
    with RankPool(1) as one_rank:
        (one,) = one_rank.results(_resume, saved, 1)
    assert all(equal_bits(three[0], each) for each in three)
    assert difference(three[0], one) <= 1e-8
    assert difference(two[0], one) <= 1e-8


def _watched(rank: int) -> Any:
    found = []
    for by_call, options in ((False, {}), (True, {}), (False, {"max_grad_norm": 1.0})):
        model = build("conv")
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, mode="barrier", **options)
        watch = UpdateRuleWatch(trainable(model))
        watch.begin()
        backward(model(*batches("conv", 1, rank)[0]))
        if by_call:
            optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        watch.end()
        found.append(watch.rule)
        optimizer.close()
    return found


def test_a_profile_sees_the_wrappers_own_clipping(pool: RankPool) -> None:
    """A job that profiles itself clips by the wrapper's call or argument: its updates wait for a norm."""
    assert pool.results(_watched)[0] == ["per-gradient", "global-norm", "global-norm"]


def _groups(rank: int) -> Any:
    """Parameter groups, weight decay, a scheduler and hooks that look at everything."""
    model = build("recurrent", double=True)
    parameters = trainable(model)
    groups = [{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2], "lr": 3e-3}]
    inner = torch.optim.AdamW(groups, lr=1e-3)
    optimizer: Any = wrap("gloo", inner, model, sharding="on") if rank >= 0 else inner
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    average = [parameter.detach().clone() for parameter in parameters]
    for step in range(8):
        optimizer.zero_grad()
        shares = [rank] if rank >= 0 else range(SIZE)
        for share in shares:
            batch = batches("recurrent", 8, share, double=True)[step]
            backward(model(*batch) / (1 if rank >= 0 else SIZE))
        optimizer.step()
        scheduler.step()
        optimizer.param_groups[0]["weight_decay"] = 0.02 * step
        for kept, parameter in zip(average, model.parameters(), strict=True):
            kept.lerp_(parameter.detach(), 0.1)
    seen = {str(number): kept.numpy().copy() for number, kept in enumerate(average)}
    if rank >= 0:
        optimizer.close()
        meet("gloo")
    return weights(model), seen


def test_groups_schedulers_and_whoever_reads_parameters(pool: RankPool) -> None:
    """Hyper-parameters are those of each ``step()``; a moving average sees gathered parameters."""
    expected, average = _groups(-1)
    for trained, seen in pool.results(_groups):
        assert difference(trained, expected) <= 1e-8
        assert difference(seen, average) <= 1e-8
