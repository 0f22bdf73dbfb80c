"""Gathers that go before other sums are done: their order, what they wait for, and rounds that need more."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pace.documents.collective_costs import AffineAllReduce, AffineHalf
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.documents.schedule import Schedule
from pace.kinds import optimize
from pace.runtime.engine.sharded_plan import order_from_step
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build, weights
from tests.runtime.rank_pool import RankPool
from tests.runtime.shards.jobs import halves_schedule
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_plainly,
    trainable,
    wrap,
)

SIZE = 3


def _layers(sizes: tuple[int, ...]) -> Profile:
    """Layers of one second backward and ten forward, the last first; a byte takes 1/4 s in each half."""
    names = [f"layer{number}" for number in range(len(sizes))]
    return Profile(
        name="layers",
        workers=2,
        ops=(
            *(Op(name=f"bwd/{name}", duration_s=1.0, stream="compute") for name in names[::-1]),
            *(Op(name=f"fwd/{name}", duration_s=10.0, stream="compute", waits_for=(name,)) for name in names),
        ),
        gradients=tuple(
            Gradient(name=name, size_bytes=size, producer=f"bwd/{name}")
            for name, size in zip(names, sizes, strict=True)
        ),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=0.5),
        reduce_scatter=AffineHalf(latency_s=0.0, seconds_per_byte=0.25),
        all_gather=AffineHalf(latency_s=0.0, seconds_per_byte=0.25),
    )


def test_after_the_backward_pass_the_longest_tail_goes_first() -> None:
    """Worked by hand: as layer 0 becomes ready at 3 s, it overtakes all, and its gather the other sums."""
    made = optimize(_layers((8, 8, 32)), Options(exchange="sharded", fusion="none"))
    early = order_from_step(made)
    order = [
        ("sum" if segment.op == "reduce-scatter" else "gather") + made.groups[segment.group].tensors[0]
        for segment in early.segments
    ]
    merged = [name for place, name in enumerate(order) if place == 0 or order[place - 1] != name]
    assert merged == [f"{half}layer{number}" for number in range(3) for half in ("sum", "gather")]
    # Two seconds each for a sum and a gather, and thirty of forward passes.
    assert early.iteration_s == pytest.approx(3 + 2 + 2 + 30)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks over Gloo that stay for all tests."""
    with RankPool(SIZE) as ranks:
        yield ranks


def urgent_first(model: nn.Module, workers: int) -> Schedule:
    """Gather the model's first parameter before anything else but it is summed."""
    made = halves_schedule(model, workers, seed=2, fusion="none")
    first = next(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return made.model_copy(
        update={
            "groups": tuple(
                group.model_copy(
                    update={"ready_s": 0.0}
                    if group.op == "reduce-scatter"
                    else {"tail_s": 5.0 if group.tensors[0] == first else group.tail_s}
                )
                for group in made.groups
            )
        }
    )


def _held_back(rank: int) -> Any:
    """Let no reduce-scatter but the first parameter's end before that parameter is used again."""
    model: Any = build("conv", double=True)
    optimizer: Any = wrap(
        "gloo",
        OPTIMIZERS["adam"](trainable(model)),
        model,
        sharding="on",
        schedule=urgent_first(model, SIZE),
        order="static",
    )
    used = threading.Event()
    send, gather = optimizer._transport.reduce_scatter, optimizer._transport.all_gather
    seen: list[str] = []

    def slowly(parts: Any, name: str, done: Any) -> None:
        if "all-gather" in seen:
            seen.append("in time" if used.wait(60) else "too late")
        else:
            seen.append("reduce-scatter")
        send(parts, name, done)

    def note(*arguments: Any) -> None:
        seen.append("all-gather")
        gather(*arguments)

    first = next(model.named_parameters())[0]
    for step, batch in enumerate(batches("conv", 6, rank, double=True)):
        optimizer.zero_grad()
        backward(model(*batch))
        if step == 3:
            optimizer._transport.reduce_scatter, optimizer._transport.all_gather = slowly, note
        optimizer.step()
        if step == 3:
            model.get_parameter(first).detach().sum().item()
            used.set()
            optimizer.synchronize()
            optimizer._transport.reduce_scatter, optimizer._transport.all_gather = send, gather
    trained = weights(model)
    optimizer.close()
    return trained, seen


def test_a_parameter_is_gathered_and_used_before_other_sums_begin(pool: RankPool) -> None:
    """If ``step()``, an update or a gather waited for all sums, the first use would wait for itself."""
    ranks = pool.results(_held_back)
    expected = train_plainly(Case(model="conv", optimizer="adam", steps=6, double=True), SIZE)
    for trained, seen in ranks:
        assert "in time" in seen
        assert "too late" not in seen
        assert difference(trained, expected) <= 1e-8


def _changing(rank: int, seed: int, steps: int) -> Any:
    """Do something else in each step, the same on all ranks."""
    chance = random.Random(seed)
    model = build("conv", double=True)
    schedule = halves_schedule(build("conv", double=True), SIZE, seed)
    options = {
        "order": chance.choice(["static", "adaptive", "priority"]),
        "credit_bytes": chance.choice([1, 1 << 30]),
    }
    optimizer: Any = OPTIMIZERS["adamw"](trainable(model))
    if rank >= 0:
        optimizer = wrap("gloo", optimizer, model, sharding="on", schedule=schedule, **options)
    clear = True
    for step in range(steps):
        what = chance.choice(
            ["plain", "plain", "plain", "clip", "read", "one reads", "keep", "twice", "drop", "assign"]
        )
        if clear:
            optimizer.zero_grad(set_to_none=chance.random() < 0.5)
        clear = what != "keep"
        shares = [rank] if rank >= 0 else range(SIZE)
        passes = 2 if what == "twice" else 1
        for share in shares:
            for _ in range(passes):
                batch = batches("conv", steps, share, double=True)[step]
                backward(model(*batch) / (1 if rank >= 0 else SIZE))
        if what == "drop":
            clear = True
            continue
        if what == "clip":
            norm = getattr(optimizer, "clip_grad_norm_", None)
            if norm is None:
                nn.utils.clip_grad_norm_(trainable(model), 0.1)
            else:
                norm(0.1)
        elif what == "read":
            for parameter in trainable(model):
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        elif what == "one reads" and rank == 1:
            assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        optimizer.step()
        if what == "assign":  # the only change of a gradient after step() that is no error
            clear = False
            for parameter in trainable(model):
                parameter.grad = torch.full_like(parameter, 1e-3)
    if rank >= 0:
        optimizer.synchronize()
    trained = weights(model)
    if rank >= 0:
        optimizer.close()
    return trained


@pytest.mark.slow
def test_steps_that_need_more_than_step_among_those_that_do_not(pool: RankPool) -> None:
    """Clipping, reading, accumulating, dropping, assigning after a step, and plain steps, in random order."""
    for seed in range(5):
        expected = _changing(-1, seed, 16)
        found = pool.results(_changing, seed, 16)
        assert difference(found[0], expected) <= 1e-8, seed
        assert all(equal_bits(found[0], other) for other in found), seed


def _clip_large(_rank: int) -> list[str]:
    """Clip and train layers whose gathers are still sent when ``step()`` returns; return what was logged."""
    model = nn.Sequential(*(nn.Linear(800, 800) for _ in range(6)))
    inner = torch.optim.AdamW(model.parameters())
    with captured_events() as events:
        optimizer = wrap("gloo", inner, model, sharding="on")
        for _ in range(4):
            optimizer.zero_grad()
            backward(model(torch.ones(2, 800)).sum())
            optimizer.clip_grad_norm_(1.0)
            optimizer.step()
        optimizer.close()
    return [each["event"] for each in events]


def test_what_is_sent_is_not_taken_for_memory_that_the_loop_shares(pool: RankPool) -> None:
    """Otherwise ``step()`` would wait for the first gather, and the log would blame the loop."""
    for events in pool.results(_clip_large):
        assert "pace.memory_shared" not in events
