"""Capture: ops, gradients and their producers and consumers of models that really train."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from torch.utils.checkpoint import checkpoint

from pace.allreduce import AffineAllReduce
from pace.errors import InvalidOptions, InvalidProfile
from pace.fingerprint import fingerprint
from pace.profile import Profile, parse_profile
from pace.runtime.profiler import Capture
from pace.runtime.torch import DistributedOptimizer
from pace.runtime.window import Granularity, WindowOp
from tests.runtime.launch import run_ranks

ALLREDUCE = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)


def _captured(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    granularity: Granularity = "module",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = lambda p: torch.optim.SGD(p, lr=0.01),
    backwards: int = 1,
) -> tuple[Profile, Capture]:
    chosen = optimizer(p for p in model.parameters() if p.requires_grad) if optimizer else None
    with Capture(model, chosen, iterations=2, warmup=1, granularity=granularity) as capture:
        while not capture.finished:
            model.zero_grad()
            for _ in range(backwards):
                model(inputs).square().mean().backward()
            if chosen is not None:
                chosen.step()
            capture.step()
    return capture.profile("test", workers=2, allreduce=ALLREDUCE), capture


def _producers(profile: Profile) -> dict[str, str]:
    return {gradient.name: gradient.producer for gradient in profile.gradients}


def _consumers(profile: Profile) -> dict[str, str]:
    """For every gradient, the op after the update that waits for it."""
    found: dict[str, str] = {}
    for op in profile.ops:
        for following in profile.ops:
            if op.name in following.deps and op.waits_for:
                found |= dict.fromkeys(op.waits_for, following.name)
    return found


def _num_updates(ops: tuple[WindowOp, ...]) -> float:
    return sum(op.share for op in ops if op.name.startswith("update/") and op.share < 1)


def _layered() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


IMAGES = torch.randn(2, 3, 8, 8)


def test_a_layered_model() -> None:
    """Ops in the order in which they ran, window turned; each layer produces and consumes its own."""
    profile, _ = _captured(_layered(), IMAGES)
    names = [op.name for op in profile.ops]
    backward = [f"bwd/{name}" for name in ("loss", "4", "3", "2", "1", "0")]
    assert names[:6] == backward
    forward = [name for name in names if name.startswith("fwd/")]
    assert forward == [f"fwd/{name}" for name in ("input", "0", "1", "2", "3", "4", "loss")]
    layer = {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1, "4.weight": 4, "4.bias": 4}
    assert _producers(profile) == {name: f"bwd/{number}" for name, number in layer.items()}
    assert _consumers(profile) == {name: f"fwd/{number}" for name, number in layer.items()}
    assert {op.stream for op in profile.ops} == {"compute"}
    assert {g.name: g.size_bytes for g in profile.gradients}["4.weight"] == 144 * 5 * 4
    assert all(profile.timing.ready_s[i] <= profile.timing.ready_s[i + 1] for i in range(5))
    assert parse_profile(profile.model_dump_json()) == profile


def test_the_fingerprint_is_that_of_the_parameters() -> None:
    """A schedule for the profile fits the model that it was captured from."""
    model = _layered()
    profile, _ = _captured(model, IMAGES)
    parameters = [(name, p.numel() * 4, "float32") for name, p in model.named_parameters()]
    assert profile.fingerprint == fingerprint(parameters, 2)


@pytest.mark.parametrize("granularity", ["module", "operator"])
def test_every_interval_is_in_one_op(granularity: Granularity) -> None:
    """Durations add up to the iteration: nothing is counted twice, nothing is left out but capture itself."""
    _, capture = _captured(_layered(), IMAGES, granularity=granularity)
    window = capture._recorder.window
    assert window is not None
    used = Counter(interval for op in window.ops if op.share == 1 for interval in op.intervals)
    expected = Counter(
        number for number, place in enumerate(window.places) if place.kind not in ("capture", "optimizer")
    )
    assert used == expected
    assert _num_updates(window.ops) == pytest.approx(1)
    total = sum(op.duration_s for op in capture.profile("x", workers=1, allreduce=ALLREDUCE).ops)
    assert total == pytest.approx(capture.report.profile_s)


def test_the_compute_bound_is_the_reported_profile_time() -> None:
    """All ops lie on one stream, so the window is as long as all ops together."""
    profile, capture = _captured(_layered(), IMAGES)
    assert profile.timing.compute_s == pytest.approx(capture.report.profile_s)
    assert profile.metadata["plain_iteration_s"] == capture.report.plain_iteration_s > 0
    assert "plain iteration" in str(capture.report)


def test_operator_granularity_names_functions_and_autograd_nodes() -> None:
    """Forward ops carry the function that the module calls, backward ops the node of the graph."""
    profile, _ = _captured(_layered(), IMAGES, granularity="operator")
    names = {op.name for op in profile.ops}
    assert {"fwd/0/conv2d", "fwd/4/linear", "bwd/0/ConvolutionBackward0", "bwd/4/AddmmBackward0"} <= names
    assert _producers(profile)["0.weight"] == "bwd/0/ConvolutionBackward0"
    assert _consumers(profile)["0.weight"] == "fwd/0/conv2d"


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.shortcut = nn.Linear(6, 6)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(self.inner(x) + self.shortcut(x))
        return result


def test_branches_depend_on_what_they_read() -> None:
    """Dependencies are the autograd graph's: both branches hang on the sum, in both directions."""
    profile, _ = _captured(nn.Sequential(nn.Linear(6, 6), _Residual()), torch.randn(2, 6))
    deps = {op.name: set(op.deps) for op in profile.ops}
    assert deps["fwd/1.inner"] == {"fwd/0", "update/1.inner"}
    assert deps["fwd/1.shortcut"] == {"fwd/0", "update/1.shortcut"}
    assert deps["fwd/1"] == {"fwd/1.inner", "fwd/1.shortcut"}
    assert deps["bwd/1.inner"] == {"bwd/1"}
    assert deps["bwd/1.shortcut"] == {"bwd/1"}
    assert deps["bwd/0"] == {"bwd/1.inner", "bwd/1.shortcut"}


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.again(F.relu(self.first(self.again(x))))
        return result


def test_a_module_called_twice() -> None:
    """Its gradient is ready after the last backward op of it and consumed by the first forward op."""
    profile, _ = _captured(_Twice(), torch.randn(2, 6))
    assert _producers(profile)["again.weight"] == "bwd/again#2"
    assert _consumers(profile)["again.weight"] == "fwd/again"
    assert _producers(profile)["first.weight"] == "bwd/first"
    order = [op.name for op in profile.ops]
    assert order.index("fwd/again") < order.index("fwd/first") < order.index("fwd/again#2")


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(self.embedding(tokens)))
        return result


def test_a_shared_parameter() -> None:
    """One gradient, complete when the backward pass ends, needed when the forward pass starts."""
    profile, _ = _captured(_Tied(), torch.randint(0, 11, (2, 3)))
    assert sorted(_producers(profile)) == ["body.bias", "body.weight", "embedding.weight"]
    assert _producers(profile)["embedding.weight"] == "bwd/embedding"
    assert _consumers(profile)["embedding.weight"] == "fwd/embedding"


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.linear = nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2)
        self.head = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.linear.weight, self.linear.bias)
        x = self.attention(x, x, x, need_weights=False)[0]
        result: torch.Tensor = self.head(x) * self.scale
        return result


def test_parameters_used_without_calling_their_module() -> None:
    """The consumer is where autograd recorded the use, whichever module holds the parameter."""
    profile, _ = _captured(_Functional(), torch.randn(4, 2, 6))
    order = {op.name: number for number, op in enumerate(profile.ops)}
    uses = _consumers(profile)
    assert uses["linear.weight"] == "fwd/_Functional"
    assert uses["attention.out_proj.weight"] == uses["attention.in_proj_weight"] == "fwd/attention"
    assert uses["head.weight"] == "fwd/head"
    assert uses["scale"] == "fwd/_Functional#2"
    assert order["fwd/_Functional"] < order["fwd/attention"] < order["fwd/head"] < order["fwd/_Functional#2"]


def test_frozen_parameters_have_no_gradient() -> None:
    """Their ops stay, since they take time."""
    model = _layered()
    model[0].requires_grad_(False)
    profile, _ = _captured(model, IMAGES)
    assert sorted(_producers(profile)) == ["1.bias", "1.weight", "4.bias", "4.weight"]
    assert "fwd/0" in {op.name for op in profile.ops}
    assert "bwd/0" not in {op.name for op in profile.ops}


def test_a_model_with_nothing_to_train() -> None:
    """A valid profile: nothing to send."""
    model = _layered().requires_grad_(False)
    model[4].weight.requires_grad_(False)
    with Capture(model, iterations=1, warmup=1) as capture:
        while not capture.step():
            model(IMAGES)
    profile = capture.profile("frozen", workers=2, allreduce=ALLREDUCE)
    assert profile.gradients == ()
    assert "fwd/4" in {op.name for op in profile.ops}


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 6)
        self.spare = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(x)
        return result


def test_an_unused_parameter_is_sent_all_the_same() -> None:
    """Known to be absent only at the end of the backward pass, and needed by nothing."""
    profile, _ = _captured(_Unused(), torch.randn(2, 6))
    last = [op.name for op in profile.ops if op.name.startswith("bwd/")][-1]
    assert _producers(profile)["spare.weight"] == last
    assert "spare.weight" not in {name for op in profile.ops for name in op.waits_for}
    assert profile.metadata["unused_parameters"] == ["spare.weight", "spare.bias"]


def test_accumulated_gradients_are_ready_in_the_last_backward_pass() -> None:
    """The window begins at the backward pass that completes gradients; the others belong to the forward."""
    profile, _ = _captured(_layered(), IMAGES, backwards=2)
    names = [op.name for op in profile.ops]
    assert _producers(profile)["0.weight"] == "bwd/0"
    assert names[0] == "bwd/loss"
    assert names.index("bwd/0") < names.index("fwd/0") < names.index("bwd/0#2") < names.index("fwd/0#2")
    assert _consumers(profile)["0.weight"] == "fwd/0"


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(checkpoint(self.inner, x, use_reentrant=False))
        return result


def test_activation_checkpointing() -> None:
    """Running a module again in the backward pass is backward time."""
    profile, _ = _captured(_Checkpointed(), torch.randn(2, 6))
    names = [op.name for op in profile.ops]
    assert names.count("fwd/inner.0") == 1
    assert "fwd/inner.0#2" not in names
    assert _producers(profile)["inner.0.weight"] == "bwd/inner.0"


def test_without_an_optimizer_the_forward_op_waits() -> None:
    """Where no update was seen, the gradient is needed where the parameter is."""
    profile, _ = _captured(_layered(), IMAGES, optimizer=None)
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert waits["0.weight"] == "fwd/0"
    assert waits["4.bias"] == "fwd/4"


def test_training_goes_on_as_if_nothing_had_been_captured() -> None:
    """Weights, buffers, momentum and random numbers are those of training without a capture."""

    def train(capturing: bool) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(_layered(), nn.Dropout(0.5))
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
    model = _layered()
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
    model = _layered()
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
    model = _layered()
    with pytest.raises(InvalidOptions, match="warmup=0"):
        Capture(model, warmup=0)
    with pytest.raises(InvalidOptions, match=r"before torch\.compile"):
        Capture(cast("nn.Module", torch.compile(model)))
    model[4].to("meta")
    with pytest.raises(InvalidOptions, match=r"several devices \(cpu, meta\)"):
        Capture(model)


def test_a_wrapped_optimizer_is_refused() -> None:
    """PACE's own wrapper, on one rank: capture comes before it."""
    model = _layered()
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
    model = nn.parallel.DistributedDataParallel(_layered())
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


@pytest.mark.cuda
@pytest.mark.parametrize("granularity", ["module", "operator"])
def test_on_cuda(granularity: Granularity) -> None:
    """The device's own events time the ops; the profile is the same as on the CPU but for durations."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = _layered()
    on_cpu, _ = _captured(model, IMAGES, granularity=granularity)
    on_cuda, capture = _captured(model.cuda(), IMAGES.cuda(), granularity=granularity)
    assert [op.name for op in on_cuda.ops] == [op.name for op in on_cpu.ops]
    assert _producers(on_cuda) == _producers(on_cpu)
    assert _consumers(on_cuda) == _consumers(on_cpu)
    assert capture.report.plain_iteration_s > 0
