"""Operators on guarded tensors after a step: functions that ignore ``__torch_function__`` ask, too."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, tensor
from torch.overrides import TorchFunctionMode

from pace.runtime.gates.function_watch import ignore_functions, watch_functions
from pace.runtime.gates.guarded_tensors import guard, unguard, without_guards


@pytest.fixture(autouse=True)
def watch() -> Iterator[None]:
    """The watch, as after a step."""
    watch_functions()
    yield
    ignore_functions()


def _guarded() -> tuple[nn.Parameter, list[torch.Tensor]]:
    """Return a guarded parameter, and a list to which its guard adds it."""
    parameter = nn.Parameter(torch.ones(2, 2))
    asked: list[torch.Tensor] = []

    def note(each: torch.Tensor) -> None:
        asked.append(each)
        unguard(each)

    guard(parameter, note)
    return parameter, asked


# They give back the tensor itself, guarded as it is; or they are private, and only torch itself has them.
_HARMLESS = {"_as_tensor_fullprec", "_to_functional_tensor"}


@pytest.mark.parametrize(
    "space", ["torch", "torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special"]
)
def test_no_function_of_torch_makes_a_tensor_without_asking(space: str) -> None:
    """Every built-in one that can be called with a guarded tensor: more may come with the next torch."""
    silent = set()
    module = sys.modules[space]
    for name in dir(module):
        function = getattr(module, name)
        if not inspect.isbuiltin(function) or name.startswith(("set_", "_set_", "init", "_init")):
            continue
        for arguments in (lambda p: (p,), lambda p: (p, p), lambda p: (p, 1), lambda p: ([p],)):
            parameter, asked = _guarded()
            try:
                made = function(*arguments(parameter))
            except Exception:
                continue
            finally:
                unguard(parameter)
            if isinstance(made, torch.Tensor) and made is not parameter and not asked:
                silent.add(name)
    assert silent - _HARMLESS == set()


class _Counting(TorchFunctionMode):
    """Counts calls of ``torch.tensor``."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is tensor
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*copy construct from a tensor")
def test_it_stays_below_the_modes_of_user_code() -> None:
    """These begin and end as they would alone, and so do default devices; it sees calls inside them."""
    ignore_functions()
    parameter, asked = _guarded()
    torch.set_default_device("cpu")
    with torch.device("meta"), _Counting() as outer:
        watch_functions()
        with _Counting() as inner:
            watch_functions()
            assert tensor(parameter, device="cpu").tolist() == [[1.0, 1.0], [1.0, 1.0]]
            ignore_functions()
            assert tensor(1.0).device.type == "meta"
        watch_functions()
    assert (len(asked), outer.calls, inner.calls) == (1, 2, 2)
    assert tensor(1.0).device.type == "cpu"
    torch.set_default_device(None)
    ignore_functions()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:.*copy construct from a tensor")
def test_the_runtime_itself_is_not_watched() -> None:
    """Nor does a guard that ends the watch break the function that called it."""
    parameter, asked = _guarded()
    with without_guards():
        parameter.detach()
        assert tensor(parameter).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert asked == []

    def end(each: torch.Tensor) -> None:
        unguard(each)
        ignore_functions()

    guard(parameter, end)
    assert tensor(parameter).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    ignore_functions()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:.*copy construct from a tensor")
def test_it_may_end_in_inference_mode() -> None:
    """As before an evaluation, which leaves the state of this thread as it was."""
    parameter, asked = _guarded()
    with torch.inference_mode():
        ignore_functions()
        torch.ones(1).sum()
    tensor(parameter)
    assert (asked, float(torch.ones(3).sum())) == ([], 3.0)
    unguard(parameter)
