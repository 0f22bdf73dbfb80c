"""Compiled models: hooks and gates do not reach into compiled code, but weights are right all the same."""

from typing import Any

import pytest
import torch

from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import Batch, batches, build, weights
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

STEPS = 6
AUTO_STEPS = 20

# "aot_eager" traces forward and backward as "inductor" does, and generates no code.
BACKEND = "aot_eager"

REASON = "{} compiles code that may use parameters without PACE noticing"


class _Half(torch.nn.Module):
    """A model of which a part is compiled."""

    def __init__(self) -> None:
        super().__init__()
        inner: Any = build("conv")
        inner.features = torch.compile(inner.features, backend=BACKEND)
        self.inner = inner

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Loss of the inner model."""
        loss: torch.Tensor = self.inner(*batch)
        return loss


def _plain_names(found: Weights) -> Weights:
    return {name.replace("_orig_mod.", "").removeprefix("inner."): each for name, each in found.items()}


def _train(
    rank: int,
    model: Any,
    called: Any,
    steps: int,
    *,
    set_to_none: bool = True,
    compiled_step: bool = False,
    **options: Any,
) -> tuple[list[Weights], list[str]]:
    """Train, and read the weights after every step, as a checkpoint would; return why it had a barrier."""
    with captured_events() as events:
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
        step = torch.compile(lambda: optimizer.step(), backend=BACKEND) if compiled_step else optimizer.step
        read = []
        shares: list[Batch] = batches("conv", steps, rank)
        for batch in shares:
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(called(*batch))
            step()
            read.append(_plain_names(weights(model)))
        optimizer.close()
    return read, [each["reason"] for each in events if each["event"] == "pace.barrier_mode"]


def _train_compiled(rank: int, _size: int) -> Any:
    from torch._dynamo.utils import counters

    found = {}
    compiled = torch.compile(build("conv"), backend=BACKEND)
    found["whole"] = _train(rank, compiled, compiled, STEPS)
    torch.compiler.reset()
    compiled = torch.compile(build("conv"), backend=BACKEND)
    counters.clear()
    found["auto"] = _train(rank, compiled, compiled, AUTO_STEPS, mode="auto")
    graphs = counters["stats"]["unique_graphs"]
    torch.compiler.reset()
    half = _Half()
    found["part"] = _train(rank, half, half, STEPS)
    torch.compiler.reset()
    model = build("conv")
    compiled = torch.compile(model, backend=BACKEND)
    found["wrapped by the original"] = _train(rank, model, compiled, STEPS, set_to_none=False)
    torch.compiler.reset()
    model = build("conv")
    model.compile(backend=BACKEND)
    found["in place"] = _train(rank, model, model, STEPS)
    model = build("conv")
    found["step"] = _train(rank, model, model, STEPS, compiled_step=True)
    scripted = torch.jit.script(build("conv"))
    found["scripted"] = _train(rank, scripted, scripted, STEPS)
    model = build("conv")
    found["not compiled"] = _train(rank, model, model, STEPS)
    return found, graphs


@pytest.mark.slow
def test_compiled_models_train_to_the_same_weights() -> None:
    """Whole, in part, in place, with a barrier that is logged once; no change of plan compiles anew."""
    (first, graphs), (second, _) = run_ranks(_train_compiled, 2, timeout_s=280)
    plain = [train_plainly(Case(steps=steps), 2) for steps in range(1, STEPS + 1)]
    for name, (read, reasons) in first.items():
        compiler = {"scripted": "torch.jit", "not compiled": None}.get(name, "torch.compile")
        assert reasons == ([] if compiler is None else [REASON.format(compiler)]), name
        if name != "auto":
            for ours, expected in zip(read, plain, strict=True):
                assert difference(ours, expected) <= 1e-5, name
        assert equal_bits(read[-1], second[name][0][-1]), name
    assert difference(first["auto"][0][-1], train_plainly(Case(steps=AUTO_STEPS), 2)) <= 1e-5
    assert graphs <= 3


def _compile_between_steps(rank: int, _size: int, mode: str) -> Weights:
    model = build("conv")
    called: Any = model
    optimizer = wrap("gloo", OPTIMIZERS["adam"](trainable(model)), model, mode=mode)
    for step, batch in enumerate(batches("conv", STEPS, rank)):
        if step == 2:
            called = torch.compile(model, backend=BACKEND)
        optimizer.zero_grad()
        backward(called(*batch))
        optimizer.step()
    optimizer.close()
    return weights(model)


@pytest.mark.slow
def test_an_update_that_compilation_waits_for_is_rounded_as_others() -> None:
    """An optimizer that believes it is compiled, because its caller is, keeps its step in float32."""
    overlap, barrier = (run_ranks(_compile_between_steps, 2, mode)[0] for mode in ("overlap", "barrier"))
    assert equal_bits(overlap, barrier)
