"""Real traces in which nothing marks the steps: no profiler.step(), and updates by hand."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.strategies import affine

Loop = Callable[[int], None]
INPUTS = torch.randn(16, 8)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def _pass(model: nn.Module) -> None:
    torch.autograd.backward(model(INPUTS).square().mean())


def _subtract(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.01 * parameter.grad)
            parameter.grad = None


def by_hand(model: nn.Module) -> Loop:
    """Update without gradients, and drop them."""

    def step(_: int) -> None:
        _pass(model)
        _subtract(model)

    return step


def of_data(model: nn.Module) -> Loop:
    """Replace the data, where autograd records; zero the gradients in place, before the backward pass."""

    def step(_: int) -> None:
        loss = model(INPUTS).square().mean()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        torch.autograd.backward(loss)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data = parameter.data - 0.01 * parameter.grad

    return step


def never_updated(model: nn.Module) -> Loop:
    """Time the passes only, as benchmarks do."""

    def step(_: int) -> None:
        _pass(model)
        model.zero_grad()

    return step


def accumulating(model: nn.Module) -> Loop:
    """Update after every fourth micro-batch."""

    def step(number: int) -> None:
        last = number % 4 == 3
        with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext():
            _pass(model)
        if last:
            _subtract(model)

    return step


def _record(path: Path, step: Loop, count: int, *, warm_up: int = 8) -> Path:
    torch.set_num_threads(1)
    for number in range(warm_up):
        step(number)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for number in range(count):
            step(number)
    recorded.export_chrome_trace(str(path))
    return path


def _read(path: Path) -> Profile:
    return read_kineto([path], workers=4, allreduce=affine(1e-4, 1e-9))


@pytest.mark.parametrize(
    ("make", "count", "steps"),
    [(by_hand, 8, 8), (by_hand, 200, 200), (of_data, 8, 8), (never_updated, 8, 8), (accumulating, 16, 4)],
)
def test_steps_are_found_by_their_gradients(
    tmp_path: Path, make: Callable[[nn.Module], Loop], count: int, steps: int
) -> None:
    """A pass that does not add to the gradients of the one before begins a step."""
    profile = _read(_record(tmp_path / "trace.json", make(_model()), count))
    found = profile.metadata
    assert found["steps"] + found["dropped"]["steps"] == steps
    assert found["steps"] >= steps - 1
    assert len(profile.gradients) == 4
    assert sum(op.name.endswith("linear") for op in profile.ops) == 2 * count // steps


def test_recording_may_begin_and_end_within_a_step(tmp_path: Path) -> None:
    """Between a forward and a backward pass, and after warm-up, which is recorded as well."""
    model = _model()
    loss = model(INPUTS).square().mean()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        torch.autograd.backward(loss)
        _subtract(model)
        for number in range(6):
            by_hand(model)(number)
        model(INPUTS)
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    with pytest.warns(FormatWarning, match="1 of 7 steps ran other operators"):
        found = _read(tmp_path / "trace.json").metadata
    assert found["steps"] == 6


@pytest.fixture
def process_group() -> Iterator[None]:
    """One worker: buckets are filled and all-reduces issued all the same."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("make", "kind", "steps"),
    [(by_hand, "DDP", 8), (accumulating, "DDP with gradient accumulation", 2)],
)
def test_steps_of_ddp_are_found(
    tmp_path: Path, make: Callable[[nn.Module], Loop], kind: str, steps: int
) -> None:
    """Four passes with an all-reduce each are four steps, and no accumulation without no_sync."""
    found = _read(_record(tmp_path / "trace.json", make(DistributedDataParallel(_model())), 8)).metadata
    assert found["job"]["kind"] == kind
    assert found["steps"] + found["dropped"]["steps"] == steps


@pytest.mark.usefixtures("process_group")
def test_accumulation_without_no_sync_is_still_told(tmp_path: Path) -> None:
    """The micro-batches add to one another's gradients."""
    model = DistributedDataParallel(_model())

    def step(number: int) -> None:
        _pass(model)
        if number % 2:
            _subtract(model)

    with pytest.raises(FormatError, match=r"accumulation without no_sync \(.*2 backward passes a step"):
        _read(_record(tmp_path / "trace.json", step, 8))


def test_steps_that_do_not_repeat_are_refused(tmp_path: Path) -> None:
    """Two models in turn; a second pass at perturbed weights; updates whose gradients are never reset."""
    one, other = _model(), nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))

    def in_turn(_: int) -> None:
        by_hand(one)(0)
        by_hand(other)(0)

    def in_turn_with_optimizers(_: int) -> None:
        for model in (one, other):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            _pass(model)
            optimizer.step()
            optimizer.zero_grad()

    def perturbed(_: int) -> None:
        _pass(one)
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.add_(0.05 * parameter.sign())
                parameter.grad = None
        by_hand(one)(0)

    def never_reset(_: int) -> None:
        _pass(one)
        with torch.no_grad():
            for parameter in one.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.01 * parameter.grad)

    for loop in (in_turn, in_turn_with_optimizers, perturbed, never_reset):
        one.zero_grad()
        with pytest.raises(FormatError, match=r"nothing marks the steps: call profiler.step\(\)"):
            _read(_record(tmp_path / "trace.json", loop, 6, warm_up=1))


def test_headroom_is_about_one_of_the_steps(tmp_path: Path) -> None:
    """As much compute as an iteration has, not as all of them."""
    path = _record(tmp_path / "trace.json", by_hand(_model()), 8)
    options = ["--workers", "4", "--bandwidth-gbps", "10", "--json"]
    answer = CliRunner().invoke(app, ["headroom", str(path), *options])
    assert answer.exit_code == 0, answer.output
    recorded = _read(path).metadata["step_wall_s"]
    assert json.loads(answer.stdout)["time"]["compute_s"] < 2 * recorded
