"""Capture: ops, gradients and their producers and consumers of models that really train."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from torch.utils.checkpoint import checkpoint

from pace.documents.profile import fingerprint, parse_profile
from pace.errors import InvalidOptions
from pace.runtime.capture.recorder import Recorder, num_steps
from pace.runtime.capture.window import Granularity, WindowOp
from pace.runtime.profiler import Capture
from tests.runtime.capture.captures import ALLREDUCE, IMAGES, captured, consumers, layered, producers


def _num_updates(ops: tuple[WindowOp, ...]) -> float:
    return sum(op.share for op in ops if op.name.startswith("update/") and op.share < 1)


def test_a_layered_model() -> None:
    """Ops in the order in which they ran, window turned; each layer produces and consumes its own."""
    profile, _ = captured(layered(), IMAGES)
    names = [op.name for op in profile.ops]
    backward = [f"bwd/{name}" for name in ("loss", "4", "3", "2", "1", "0")]
    assert names[:6] == backward
    forward = [name for name in names if name.startswith("fwd/")]
    assert forward == [f"fwd/{name}" for name in ("input", "0", "1", "2", "3", "4", "loss")]
    layer = {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1, "4.weight": 4, "4.bias": 4}
    assert producers(profile) == {name: f"bwd/{number}" for name, number in layer.items()}
    assert consumers(profile) == {name: f"fwd/{number}" for name, number in layer.items()}
    assert {op.stream for op in profile.ops} == {"compute"}
    assert {g.name: g.size_bytes for g in profile.gradients}["4.weight"] == 144 * 5 * 4
    assert all(profile.timing.ready_s[i] <= profile.timing.ready_s[i + 1] for i in range(5))
    assert parse_profile(profile.model_dump_json()) == profile


def test_the_fingerprint_is_that_of_the_parameters() -> None:
    """A schedule for the profile fits the model that it was captured from."""
    model = layered()
    profile, _ = captured(model, IMAGES)
    parameters = [(name, p.numel() * 4, "float32") for name, p in model.named_parameters()]
    assert profile.fingerprint == fingerprint(parameters, 2)


@pytest.mark.parametrize("granularity", ["module", "operator"])
def test_every_interval_is_in_one_op(granularity: Granularity) -> None:
    """Durations add up to the iteration: nothing is counted twice, nothing is left out but capture itself."""
    _, capture = captured(layered(), IMAGES, granularity=granularity)
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
    profile, capture = captured(layered(), IMAGES)
    assert profile.timing.compute_s == pytest.approx(capture.report.profile_s)
    assert profile.metadata["plain_iteration_s"] == capture.report.plain_iteration_s > 0
    assert "plain iteration" in str(capture.report)


def test_durations_are_scaled_to_a_given_iteration() -> None:
    """Their shares stay; the profile says to what it was scaled; a time that is none is refused."""
    plain, capture = captured(layered(), IMAGES)
    scaled = capture.profile("test", workers=2, allreduce=ALLREDUCE, iteration_s=3.0)
    assert scaled.timing.compute_s == pytest.approx(3.0)
    factor = 3.0 / plain.timing.compute_s
    for before, after in zip(plain.ops, scaled.ops, strict=True):
        assert after.duration_s == pytest.approx(factor * before.duration_s)
        assert after.duration_std_s == pytest.approx(factor * before.duration_std_s)
    assert scaled.metadata["scaled_by"] == pytest.approx(factor)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidOptions, match="iteration_s="):
            capture.profile("test", workers=2, allreduce=ALLREDUCE, iteration_s=wrong)


def test_operator_granularity_names_functions_and_autograd_nodes() -> None:
    """Forward ops carry the function that the module calls, backward ops the node of the graph."""
    profile, _ = captured(layered(), IMAGES, granularity="operator")
    names = {op.name for op in profile.ops}
    assert {"fwd/0/conv2d", "fwd/4/linear", "bwd/0/ConvolutionBackward0", "bwd/4/AddmmBackward0"} <= names
    assert producers(profile)["0.weight"] == "bwd/0/ConvolutionBackward0"
    assert consumers(profile)["0.weight"] == "fwd/0/conv2d"


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
    profile, _ = captured(nn.Sequential(nn.Linear(6, 6), _Residual()), torch.randn(2, 6))
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
    profile, _ = captured(_Twice(), torch.randn(2, 6))
    assert producers(profile)["again.weight"] == "bwd/again#2"
    assert consumers(profile)["again.weight"] == "fwd/again"
    assert producers(profile)["first.weight"] == "bwd/first"
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
    profile, _ = captured(_Tied(), torch.randint(0, 11, (2, 3)))
    assert sorted(producers(profile)) == ["body.bias", "body.weight", "embedding.weight"]
    assert producers(profile)["embedding.weight"] == "bwd/embedding"
    assert consumers(profile)["embedding.weight"] == "fwd/embedding"


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
    profile, _ = captured(_Functional(), torch.randn(4, 2, 6))
    order = {op.name: number for number, op in enumerate(profile.ops)}
    uses = consumers(profile)
    assert uses["linear.weight"] == "fwd/_Functional"
    assert uses["attention.out_proj.weight"] == uses["attention.in_proj_weight"] == "fwd/attention"
    assert uses["head.weight"] == "fwd/head"
    assert uses["scale"] == "fwd/_Functional#2"
    assert order["fwd/_Functional"] < order["fwd/attention"] < order["fwd/head"] < order["fwd/_Functional#2"]


def test_frozen_parameters_have_no_gradient() -> None:
    """Their ops stay, since they take time."""
    model = layered()
    model[0].requires_grad_(False)
    profile, _ = captured(model, IMAGES)
    assert sorted(producers(profile)) == ["1.bias", "1.weight", "4.bias", "4.weight"]
    assert "fwd/0" in {op.name for op in profile.ops}
    assert "bwd/0" not in {op.name for op in profile.ops}


def test_a_model_with_nothing_to_train() -> None:
    """A valid profile: nothing to send."""
    model = layered().requires_grad_(False)
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
    profile, _ = captured(_Unused(), torch.randn(2, 6))
    last = [op.name for op in profile.ops if op.name.startswith("bwd/")][-1]
    assert producers(profile)["spare.weight"] == last
    assert "spare.weight" not in {name for op in profile.ops for name in op.waits_for}
    assert profile.metadata["unused_parameters"] == ["spare.weight", "spare.bias"]


def test_accumulated_gradients_are_ready_in_the_last_backward_pass() -> None:
    """The window begins at the backward pass that completes gradients; the others belong to the forward."""
    profile, _ = captured(layered(), IMAGES, backwards=2)
    names = [op.name for op in profile.ops]
    assert producers(profile)["0.weight"] == "bwd/0"
    assert names[0] == "bwd/loss"
    assert names.index("bwd/0") < names.index("fwd/0") < names.index("bwd/0#2") < names.index("fwd/0#2")
    assert consumers(profile)["0.weight"] == "fwd/0"


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
    profile, _ = captured(_Checkpointed(), torch.randn(2, 6))
    names = [op.name for op in profile.ops]
    assert names.count("fwd/inner.0") == 1
    assert "fwd/inner.0#2" not in names
    assert producers(profile)["inner.0.weight"] == "bwd/inner.0"


def test_without_an_optimizer_the_forward_op_waits() -> None:
    """Where no update was seen, the gradient is needed where the parameter is."""
    profile, _ = captured(layered(), IMAGES, optimizer=None)
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert waits["0.weight"] == "fwd/0"
    assert waits["4.bias"] == "fwd/4"


def on_any_device(op: str) -> str:
    """Return an op's name without its library's: cuDNN's operators have names of their own."""
    return op.replace("Cudnn", "Native")


@pytest.mark.cuda
@pytest.mark.parametrize("granularity", ["module", "operator"])
def test_on_cuda(granularity: Granularity) -> None:
    """The device's own events time the ops; the profile is the same as on the CPU but for durations."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = layered()
    on_cpu, _ = captured(model, IMAGES, granularity=granularity)
    on_cuda, capture = captured(model.cuda(), IMAGES.cuda(), granularity=granularity)
    assert [on_any_device(op.name) for op in on_cuda.ops] == [on_any_device(op.name) for op in on_cpu.ops]
    of_gradients = {name: on_any_device(op) for name, op in producers(on_cuda).items()}
    assert of_gradients == {name: on_any_device(op) for name, op in producers(on_cpu).items()}
    assert consumers(on_cuda) == consumers(on_cpu)
    assert capture.report.plain_iteration_s > 0


def test_fewer_plain_iterations_judge_as_many_recorded_ones() -> None:
    """One after every four and one at the end: ten recorded need 3 + 1 + 10 + 3 steps, and the default 29."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    recorder = Recorder(model, iterations=10, warmup=3, recorded_per_plain=4)
    traced = []
    while not recorder.finished:
        recorder.begin()
        traced.append(recorder._tracing)
        model.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        recorder.end()
    assert traced == [*[False] * 3, True, *[True] * 4, False, *[True] * 4, False, *[True] * 2, False]
    assert num_steps(iterations=10, warmup=3, recorded_per_plain=4) == len(traced) == 17
    assert recorder.report.num_iterations == 10
    assert num_steps(iterations=20, warmup=3, recorded_per_plain=4) == 29
