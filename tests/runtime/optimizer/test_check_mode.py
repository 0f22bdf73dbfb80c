"""``mode="check"`` names each use that torch does not see, and leaves safe training as it is, to the bit."""

import ctypes
import io
import math
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._C._distributed_c10d import BroadcastOptions
from torch.utils import cpp_extension

from pace.errors import InvalidOptions, InvalidUse
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build, weights
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import OPTIMIZERS, backward, equal_bits, grouped, trainable, wrap

STEPS = 5


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Two ranks over Gloo, that stay for all tests."""
    with RankPool(2) as ranks:
        yield ranks


class Kept:
    """What a program keeps of a model, and what it computes from it.

    Attributes
    ----------
    array
        The memory of the first weight, by its address: torch cannot know of it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weight: nn.Parameter = model[0].weight
        numbers = ctypes.c_double * self.weight.numel()
        self.array: Any = np.ctypeslib.as_array(numbers.from_address(self.weight.data_ptr()))
        self.copied = torch.zeros(())
        self.optimizer: Any = None

    def copy(self) -> torch.Tensor:
        """Copy the weight as it is in memory."""
        return torch.from_numpy(self.array.copy())


class _PullsBack(torch.autograd.Function):
    """The identity; its backward pass reads memory."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, kept: Kept) -> torch.Tensor:
        context.kept = kept
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0] * context.kept.copied.sum(), None


# What a program does right after step(), and in the next step with what it has kept.


def into_the_loss(kept: Kept) -> None:
    """A penalty of weights read by their address: it is in the next loss."""
    kept.copied = kept.copy().pow(2).mean()


def into_a_gradient(kept: Kept) -> None:
    """Used in a backward pass only, for the last layer."""
    kept.copied = kept.copy()


def into_the_sum(kept: Kept) -> None:
    """Added to the next gradient."""
    kept.copied = kept.copy()


def into_the_state(kept: Kept) -> None:
    """Kept in the optimizer's state, as some look-ahead optimizers do."""
    copied = kept.copy().view_as(kept.weight)
    kept.optimizer.state[kept.weight]["slow"] = copied


def into_a_file(kept: Kept) -> None:
    """Saved, as an array."""
    torch.save({"weights": [kept.array]}, io.BytesIO())


def into_a_collective(kept: Kept) -> None:
    """Summed over the ranks."""
    dist.all_reduce(kept.copy())


def changed(kept: Kept) -> None:
    """Weights decayed by their address."""
    kept.array *= 0.99


def sent_by_a_group(kept: Kept) -> None:
    """A method of a process group itself."""
    group: Any = dist.distributed_c10d._get_default_group()
    with torch.no_grad():
        options = BroadcastOptions()
        options.rootRank = 0
        group.broadcast([kept.weight], options).wait()


def summed_by_a_group(kept: Kept) -> None:
    """As above."""
    group: Any = dist.distributed_c10d._get_default_group()
    with torch.no_grad():
        group.allreduce([kept.weight]).wait()


def without_subclasses(kept: Kept) -> None:
    """Subclasses of tensors switched off."""
    with torch._C.DisableTorchFunctionSubclass():
        (kept.weight * 1).sum()


def without_functions(kept: Kept) -> None:
    """All of ``__torch_function__`` switched off."""
    with torch._C.DisableTorchFunction():
        kept.weight.norm()


def of_another_class(kept: Kept) -> None:
    """Made another tensor of the same memory."""
    torch.Tensor._make_subclass(nn.Parameter, kept.weight).detach().clone()


def constructed(kept: Kept) -> None:
    """Given to a function that ignores the class of tensors; only without check mode it waits."""
    torch.asarray(kept.weight, copy=True, requires_grad=False)


def transformed(kept: Kept) -> None:
    """As above."""
    torch.func.grad(lambda weight: (weight * weight).sum())(kept.weight)


USES: dict[Callable[[Kept], None], str] = {
    into_the_loss: "what backward() starts from has values that were read from 0.weight",
    into_a_gradient: "the gradient of 2.bias has values that were read from 0.weight",
    into_the_sum: "a sum of gradients has values that were read from 0.weight",
    into_the_state: "the optimizer's state has values that were read from 0.weight",
    into_a_file: "what is saved has values that were read from 0.weight",
    into_a_collective: "the collective c10d.allreduce_.default has values that were read from 0.weight",
    changed: "the memory of 0.weight was changed past torch",
    sent_by_a_group: "c10d.broadcast_.default uses 0.weight past PACE's guards",
    summed_by_a_group: "c10d.allreduce_.default uses 0.weight past PACE's guards",
    without_subclasses: "aten.mul.Tensor uses 0.weight past PACE's guards",
    without_functions: "uses 0.weight past PACE's guards",
    constructed: "aten.clone.default uses 0.weight past PACE's guards",
    transformed: "aten.mul.Tensor uses 0.weight past PACE's guards",
    of_another_class: "aten.clone.default uses 0.weight past PACE's guards",
}


def _small() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def _begin(model: nn.Module, inner: torch.optim.Optimizer, options: dict[str, Any]) -> tuple[Any, Any]:
    if "attach" not in options:
        return wrap("gloo", inner, model, **options), model
    from pace.runtime.ddp import attach

    parallel = nn.parallel.DistributedDataParallel(model)
    rest = {name: value for name, value in options.items() if name != "attach"}
    return attach(parallel, inner, **grouped({"timeout_s": 60.0, **rest})), parallel


def use(rank: int, after: Callable[[Kept], None], options: dict[str, Any]) -> str | None:
    """Train; return why it was refused, or None."""
    model = _small()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer, call = _begin(model, inner, options)
    kept = Kept(model)  # shards have moved it
    kept.optimizer = optimizer
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            hidden = call(torch.full((3, 4), 0.1 * step + rank, dtype=torch.float64))
            loss = hidden.pow(2).mean()
            if after is into_the_loss:
                loss = loss + kept.copied
            elif after is into_a_gradient and step:
                function: Any = _PullsBack  # untyped in torch
                loss = function.apply(loss, kept)
            backward(loss)
            if after is into_the_sum and step:
                with torch.no_grad():
                    kept.weight.grad.add_(kept.copied.view_as(kept.weight))  # type: ignore[union-attr]
            optimizer.step()
            after(kept)
    except InvalidUse as error:
        return str(error)
    finally:
        optimizer.close()
    return None


@pytest.mark.parametrize("after", USES, ids=lambda after: after.__name__)
def test_a_use_past_torch_is_named(pool: RankPool, after: Callable[[Kept], None]) -> None:
    """What was used, by which rank, in which step, and in which line; in overlap mode nobody says so."""
    for rank, said in enumerate(pool.results(use, after, {"mode": "check"})):
        assert said is not None
        assert f'mode="check": rank {rank}, step ' in said
        assert USES[after] in said
        assert re.search(rf", at .*({Path(__file__).name}|training.py):[0-9]+ \(.+\): ", said)
        assert said.endswith('call synchronize() before that use, or train with mode="barrier"')
    assert pool.results(use, after, {"mode": "overlap"}) == [None, None]
    assert pool.results(use, after, {"mode": "barrier"}) == [None, None]


@pytest.mark.parametrize("options", [{"sharding": "on"}, {"attach": True}], ids=["shards", "attached"])
@pytest.mark.parametrize(
    "after", [into_the_loss, into_the_sum, changed, without_subclasses], ids=lambda after: after.__name__
)
def test_so_it_is_with_shards_and_under_ddp(
    pool: RankPool, after: Callable[[Kept], None], options: dict[str, Any]
) -> None:
    """The same uses of the same parameter."""
    for said in pool.results(use, after, {"mode": "check", **options}):
        assert said is not None
        assert USES[after].removeprefix("a sum of gradients ") in said


def use_another(rank: int) -> str:
    """Train two models; the second one's weight gets into the loss of the first."""
    models = [_small(), nn.Sequential(_small())]
    optimizers = [
        wrap("gloo", torch.optim.SGD(each.parameters(), lr=0.05), each, mode="check") for each in models
    ]
    kept = Kept(models[1][0])
    try:
        for step in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = model(torch.full((3, 4), 0.1 * step + rank, dtype=torch.float64)).pow(2).mean()
                backward(loss + kept.copied if model is models[0] else loss)
                optimizer.step()
            kept.copied = kept.copy().sum()
    except InvalidUse as error:
        return str(error)
    finally:
        for optimizer in optimizers:
            optimizer.close()
    return ""


def test_the_parameter_of_another_wrapper_is_named(pool: RankPool) -> None:
    """Whichever wrapper finds the value."""
    for said in pool.results(use_another):
        assert "what backward() starts from has values that were read from 0.0.weight" in said


def _unset(bits: int) -> torch.Tensor:
    """Memory as an allocator may give it."""
    return torch.full((4,), bits, dtype=torch.int32).view(torch.float32)


def receive(rank: int, bits: int) -> str:
    """Train, and receive over memory that holds anything; return what the check has shown."""
    model = _small()
    with captured_events() as events:
        optimizer = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.05), model, mode="check")
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model(torch.full((3, 4), 0.1 * step + rank, dtype=torch.float64)).pow(2).mean())
            optimizer.step()
            mine, everyone = torch.ones(4), dist.distributed_c10d._get_default_group()
            received = [_unset(bits) for _ in range(2)]
            dist.all_gather(received, mine)
            dist.all_gather_into_tensor(torch.cat([_unset(bits)] * 2), mine)
            dist.reduce_scatter_tensor(_unset(bits)[:2], mine)
            dist.all_to_all_single(_unset(bits), mine)
            dist.scatter(_unset(bits), [mine, mine] if rank == 0 else None)
            dist.gather(mine, [_unset(bits) for _ in range(2)] if rank == 0 else None)
            sent = mine if rank == 0 else _unset(bits)
            dist.broadcast(sent, src=0)
            if rank == 0:
                dist.send(mine, dst=1)
            else:
                dist.recv(_unset(bits), src=0)
            functional.all_gather_tensor(mine, 0, everyone).sum()
            functional.broadcast(mine if rank == 0 else _unset(bits), 0, everyone).sum()
        optimizer.close()
    (result,) = [each["result"] for each in events if each["event"] == "pace.checked"]
    return str(result)


@pytest.mark.parametrize("bits", [0x7FAB4001, 0x7FC00000], ids=["marked", "unmarked"])
def test_what_is_received_over_may_hold_anything(pool: RankPool, bits: int) -> None:
    """Memory that a collective only writes accuses nobody, and leaves nothing undecided."""
    for result in pool.results(receive, bits):
        assert result == "no missed use of a pending parameter was found"


def synchronized(kept: Kept) -> None:
    """What the message says to do."""
    kept.optimizer.synchronize()
    kept.array *= 0.99
    into_a_file(kept)
    without_subclasses(kept)


def seen_by_torch(kept: Kept) -> None:
    """Every use of the parameter itself that torch announces."""
    torch.save({"weights": [kept.weight]}, io.BytesIO())
    dist.all_reduce(kept.weight.detach().clone())
    with torch.no_grad():
        kept.weight.mul_(0.99)
    assert math.isfinite(float(np.asarray(kept.array).sum()))


def test_uses_after_a_wait_are_right(pool: RankPool) -> None:
    """After ``synchronize()``, or a use that waits, nothing is refused."""
    for after in (synchronized, seen_by_torch):
        assert pool.results(use, after, {"mode": "check"}) == [None, None]


SOURCE = """
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <ATen/ops/detach.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>
extern "C" double norm(PyObject* weight) {
  HANDLE_TH_ERRORS
  return at::sum(at::pow(at::detach(THPVariable_Unpack(weight)), 2)).item().toDouble();
  END_HANDLE_TH_ERRORS_RET(0)
}
extern "C" void decay(PyObject* weight) {
  HANDLE_TH_ERRORS
  at::NoGradGuard guard;
  THPVariable_Unpack(weight).mul_(0.99);
  END_HANDLE_TH_ERRORS_RET()
}
"""


def extend(rank: int, library: str) -> list[str | None]:
    """Train with functions of a C++ extension."""
    made = ctypes.PyDLL(library)
    made.norm.restype, made.norm.argtypes = ctypes.c_double, [ctypes.py_object]
    made.decay.restype, made.decay.argtypes = None, [ctypes.py_object]
    return [
        use(rank, lambda kept: made.norm(kept.weight), {"mode": "check"}),
        use(rank, lambda kept: made.decay(kept.weight), {"mode": "check"}),
        use(rank, lambda kept: made.decay(kept.weight), {"mode": "barrier"}),
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_an_extension_is_named(pool: RankPool, tmp_path: Path) -> None:
    """A C++ function that reads or changes a pending parameter, whatever becomes of the result."""
    source, library = tmp_path / "extension.cpp", tmp_path / "extension.so"
    source.write_text(SOURCE)
    # Without pybind11: its headers and torch/extension.h take a slow machine more than a minute.
    headers = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-O0", *(f"-I{each}" for each in headers)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    for read, written, right in pool.results(extend, str(library)):
        assert read is not None
        assert "aten.pow.Tensor_Scalar uses 0.weight past PACE's guards" in read
        assert written is not None
        assert "aten.mul_" in written
        assert right is None


def diverge(rank: int) -> tuple[int, list[dict[str, Any]]]:
    """Train a model whose loss is a NaN of its own; return how many steps are checked, and what is logged."""
    model = _small()
    with captured_events() as events:
        optimizer = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.05), model, mode="check")
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), 1.0 + rank, dtype=torch.float64)).mean()
            backward(loss if step < 2 else (-loss.abs() - 1.0).log())
            optimizer.step()
        checked = optimizer.report().checked_steps
        optimizer.close()
    return checked, events


def test_a_nan_of_the_model_is_not_blamed(pool: RankPool) -> None:
    """It is logged once, and at the end the log says that this NaN leaves the question open."""
    for rank, (checked, events) in enumerate(pool.results(diverge)):
        assert checked == STEPS
        told = [each for each in events if each["event"] == "pace.unmarked_nan"]
        assert [(each["rank"], each["step"], each["where"]) for each in told] == [
            (rank, 2, "what backward() starts from")
        ]
        (said,) = [each for each in events if each["event"] == "pace.checked"]
        assert said["result"].startswith("not decided: a NaN without a mark appeared (step 2")


def train_both(rank: int, model: str, options: dict[str, Any]) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Train a model in overlap and in check mode; return both weights, and what is logged."""
    found: list[Any] = []
    with captured_events() as events:
        for mode in ("overlap", "check"):
            built = build(model)
            optimizer = wrap("gloo", OPTIMIZERS["adam"](trainable(built)), built, mode=mode, **options)
            for batch in batches(model, STEPS, rank):
                optimizer.zero_grad()
                backward(built(*batch))
                optimizer.step()
            optimizer.close()
            found.append(weights(built))
    return found[0], found[1], events


@pytest.mark.parametrize("options", [{}, {"sharding": "on"}, {"order": "priority"}], ids=str)
@pytest.mark.parametrize("model", ["conv", "mixed", "transformer"])
def test_weights_have_the_bits_of_overlap_mode(pool: RankPool, model: str, options: dict[str, Any]) -> None:
    """And the log says that nothing was missed."""
    if model == "mixed" and "sharding" in options:
        pytest.skip("parameters of several types are not sharded")
    for overlap, check, events in pool.results(train_both, model, options):
        assert equal_bits(overlap, check)
        (said,) = [each for each in events if each["event"] == "pace.checked"]
        assert said["steps"] == STEPS
        assert said["result"] == "no missed use of a pending parameter was found"


def start(_rank: int, variable: str | None, kind: str, options: dict[str, Any]) -> str:
    """Wrap with PACE_CHECK set; return the mode, or why not."""
    model = _small()
    inner: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters())
    before = os.environ.pop("PACE_CHECK", None)
    try:
        if variable is not None:
            os.environ["PACE_CHECK"] = variable
        with wrap("gloo", inner, model, **options) as optimizer:
            return str(optimizer.report().mode)
    except InvalidOptions as error:
        return str(error)
    finally:
        os.environ.pop("PACE_CHECK", None)
        if before is not None:
            os.environ["PACE_CHECK"] = before


def test_the_environment_turns_it_on(pool: RankPool) -> None:
    """For each wrapper whose updates could be pending; what says otherwise stays."""
    cases: dict[tuple[str | None, str], str] = {
        (None, "overlap"): "overlap",
        ("0", "overlap"): "overlap",
        ("1", "overlap"): "check",
        ("1", "auto"): "check",
        ("1", "barrier"): "barrier",
    }
    for (variable, mode), found in cases.items():
        assert pool.results(start, variable, "SGD", {"mode": mode}) == [found, found]
    for said in pool.results(start, "yes", "SGD", {}):
        assert 'PACE_CHECK is "yes": 1 (check) or 0 is needed' in said


def tuned(_rank: int) -> str:
    """Ask for a search and a check at once."""
    from pace.runtime.options import Tune
    from pace.runtime.torch import DistributedOptimizer

    model = _small()
    with pytest.raises(InvalidOptions) as refused:
        DistributedOptimizer(
            torch.optim.SGD(model.parameters()), model, mode="check", plan=Tune(method="random")
        )
    return str(refused.value)


def test_what_cannot_be_checked_is_refused(pool: RankPool) -> None:
    """An optimizer that needs a barrier, and a search that measures times."""
    for said in pool.results(start, None, "LBFGS", {"mode": "check"}):
        assert "no update can be pending" in said
        assert said.endswith('use mode="barrier" for this optimizer, which needs no check')
    for said in pool.results(tuned):
        assert 'mode is "check" and plan is a Tune' in said
