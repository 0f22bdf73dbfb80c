"""Capture around a training loop: what it leaves as it was, what it leaves out, and what it refuses."""

import random
from typing import cast

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from pace.errors import InvalidOptions, InvalidProfile
from pace.runtime.profiler import Capture
from pace.runtime.torch import DistributedOptimizer
from tests.runtime.capture.captures import ALLREDUCE, IMAGES, layered
from tests.runtime.launch import run_ranks


def test_training_goes_on_as_if_nothing_had_been_captured() -> None:
    """Weights, buffers, momentum and random numbers are those of training without a capture."""

    def train(capturing: bool) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(layered(), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()

        step()
        if capturing:
            with Capture(model, optimizer, iterations=1, warmup=1) as capture:
                while not capture.finished:
                    step()
                    capture.step()
        for _ in range(3):
            step()
        momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
        return [*model.state_dict().values(), *momenta]

    for plain, after in zip(train(False), train(True), strict=True):
        assert torch.equal(plain, after)


def test_nothing_stays_behind() -> None:
    """Hooks and the replaced backward() are gone, even when the loop fails midway."""
    model = layered()
    original = torch.autograd.backward

    def fail_in_the_full_trace() -> None:
        with Capture(model, iterations=1, warmup=1) as capture:
            for _ in range(2):
                model(IMAGES).sum().backward()
                capture.step()
            raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        fail_in_the_full_trace()
    assert torch.autograd.backward is original
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_loop_that_ends_too_early_is_told_so() -> None:
    """The message says how many iterations there were and how many are needed."""
    model = layered()
    with Capture(model, iterations=2, warmup=1) as capture:
        model(IMAGES).sum().backward()
        capture.step()
    with pytest.raises(InvalidProfile, match="ended after 1 of 6 iterations"):
        capture.profile("short", workers=2, allreduce=ALLREDUCE)


class _Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.first(x)
        return x if self.calls % 16 == 5 else self.second(x)


def test_an_iteration_that_does_other_work_is_left_out() -> None:
    """Calls 1 and 2 are warm-up and full trace; 3, 5, 7, ... are captured, and the fifth skips a layer."""
    model = _Changing()
    with Capture(model, iterations=4, warmup=1) as capture:
        while not capture.finished:
            model(torch.ones(2, 6)).sum().backward()
            capture.step()
    assert capture.report.num_dropped == 1
    assert capture.report.num_iterations == 3


def test_a_model_that_never_does_the_same_is_refused() -> None:
    """No profile is made of iterations that have nothing to do with one another."""
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(8))
    depth = iter(random.Random(1).sample(range(1, 9), 8))
    model = nn.Sequential()
    model.layers = layers
    with Capture(model, iterations=3, warmup=1) as capture:
        while not capture.finished:
            x = torch.ones(2, 6)
            for layer in layers[: next(depth)]:
                x = layer(x)
            torch.autograd.backward(x.sum())
            capture.step()
    with pytest.raises(InvalidProfile, match="did other work"):
        capture.profile("changing", workers=2, allreduce=ALLREDUCE)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method.*:DeprecationWarning"
)  # torch.compile's own imports
def test_refusals() -> None:
    """Options that cannot work are named."""
    model = layered()
    with pytest.raises(InvalidOptions, match="warmup=0"):
        Capture(model, warmup=0)
    with pytest.raises(InvalidOptions, match=r"before torch\.compile"):
        Capture(cast("nn.Module", torch.compile(model)))
    model[4].to("meta")
    with pytest.raises(InvalidOptions, match=r"several devices \(cpu, meta\)"):
        Capture(model)


def test_a_wrapped_optimizer_is_refused() -> None:
    """PACE's own wrapper, on one rank: capture comes before it."""
    model = layered()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with (
            DistributedOptimizer(optimizer, model) as wrapped,
            pytest.raises(InvalidOptions, match="capture before wrapping"),
        ):
            Capture(model, wrapped)
    finally:
        torch.distributed.destroy_process_group()


def _capture_under_ddp(rank: int, size: int) -> tuple[list[str], bool]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(layered())
    before = [p.detach().clone() for p in model.parameters()]
    different = torch.randn(2, 3, 8, 8) * (rank + 1)
    with Capture(model, iterations=1, warmup=1) as capture:
        local = []
        while not capture.finished:
            model.zero_grad()
            model(different).sum().backward()
            local.append(next(p.grad.clone() for p in model.parameters() if p.grad is not None))
            capture.step()
    gathered = [torch.zeros_like(local[0]) for _ in range(size)]
    torch.distributed.all_gather(gathered, local[0])
    assert not torch.equal(gathered[0], gathered[1]), "gradients were averaged while capturing"
    profile = capture.profile("ddp", workers=size, allreduce=ALLREDUCE)
    restored = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return sorted(g.name for g in profile.gradients), restored


def test_a_model_inside_ddp_sends_nothing_while_capturing() -> None:
    """The wrapper is looked through: names without its prefix, no averaging, weights as before."""
    for names, restored in run_ranks(_capture_under_ddp, 2):
        assert names == ["0.bias", "0.weight", "1.bias", "1.weight", "4.bias", "4.weight"]
        assert restored
