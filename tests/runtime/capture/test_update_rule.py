"""What capture says of loops that clip, scale their loss, or do neither."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pace.runtime.capture.update_rule import UpdateRuleWatch
from pace.runtime.profiler import Capture
from tests.runtime.capture.captures import ALLREDUCE, IMAGES, layered

Loop = Callable[[nn.Module, torch.optim.Optimizer], None]


def _plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del model
    optimizer.step()


def _by_norm(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _one_by_one(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    total = sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(max(total**0.5, 1.0))
    optimizer.step()


def _flattened(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    if torch.isfinite(flat).all():
        optimizer.step()


def _scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del model
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    scaler.update()


def _by_value(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()


def _logging_one(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    first = next(model.parameters())
    assert first.grad is not None
    first.grad.norm()
    optimizer.step()


def _decaying(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.norm()
    optimizer.step()


class _Trusting(torch.optim.SGD):
    """Takes the norm of each gradient as it updates it, as LAMB does."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is given here
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad / (parameter.grad.norm() + 1), alpha=group["lr"])


def _watched(loop: Loop, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> str:
    model = layered()
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]  # SGD and its like take it
    watch = UpdateRuleWatch(model.parameters())
    watch.begin()
    model(IMAGES).square().mean().backward()
    loop(model, optimizer)
    watch.end()
    watch.end()
    return watch.rule


@pytest.mark.parametrize("loop", [_by_norm, _one_by_one, _flattened, _scaled])
def test_loops_that_look_at_all_gradients_wait_for_a_norm(loop: Loop) -> None:
    """Torch's clipping, clipping by hand, a check of a flat copy, a loss scale."""
    assert _watched(loop) == "global-norm"


@pytest.mark.parametrize("loop", [_plain, _by_value, _logging_one, _decaying])
def test_other_loops_update_gradient_by_gradient(loop: Loop) -> None:
    """Nothing, clipping by value, one gradient's norm in a log, norms of parameters."""
    assert _watched(loop) == "per-gradient"


def test_norms_that_the_optimizer_takes_do_not_count() -> None:
    """Each waits for its own gradient."""
    assert _watched(_plain, _Trusting) == "per-gradient"


def test_no_mode_is_left_behind() -> None:
    """After the end, torch's functions are called as before."""
    seen: list[str] = []

    class Outer(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    watch = UpdateRuleWatch(layered().parameters())
    with Outer():
        watch.begin()
        watch.end()
        torch.zeros(2).sum()
    assert "sum" in seen
    assert watch.rule == "per-gradient"


@pytest.mark.parametrize(("clips", "rule"), [(True, "global-norm"), (False, "per-gradient")])
def test_the_captured_profile_says_so(clips: bool, rule: str) -> None:
    """From the loop around ``Capture``; no measured iteration is watched."""
    model = layered()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Capture(model, optimizer, iterations=2, warmup=1) as capture:
        while not capture.finished:
            optimizer.zero_grad()
            model(IMAGES).square().mean().backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            capture.step()
    assert capture.profile("test", workers=2, allreduce=ALLREDUCE).update == rule
