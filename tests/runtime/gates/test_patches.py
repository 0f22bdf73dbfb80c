"""What the runtime puts into torch: functions that read a tensor ask its guard, however they are reached."""

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import as_tensor, asarray, nn, tensor

from pace.runtime.gates.guarded_tensors import guard, unguard
from pace.runtime.gates.patches.places import PLACES, torch_legacy_constructors

_copied_by_default = torch.tensor
_partial = functools.partial(torch.tensor, dtype=torch.float64)
_by_name = {"made": torch.tensor, "listed": [torch.asarray]}
_double_tensor = torch.DoubleTensor


class _Holder:
    made = torch.tensor

    def __init__(self) -> None:
        self.kept = torch.tensor


_holder = _Holder()


def _with_default(value: torch.Tensor, make: Callable[[Any], torch.Tensor] = torch.tensor) -> torch.Tensor:
    return make(value)


def _closed_over() -> Callable[[Any], torch.Tensor]:
    make = torch.tensor
    return lambda value: make(value)


_closure = _closed_over()

READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a name imported before the first guard": lambda p: tensor(p),
    "torch.as_tensor with another dtype": lambda p: as_tensor(p, dtype=torch.float32),
    "torch.asarray": lambda p: asarray(p),
    "a global": lambda p: _copied_by_default(p),
    "functools.partial": lambda p: _partial(p),
    "a dictionary": lambda p: _by_name["made"](p),  # type: ignore[operator]  # of functions
    "a list in a dictionary": lambda p: _by_name["listed"][0](p),  # type: ignore[index]  # as above
    "an attribute of a class": lambda p: vars(_Holder)["made"](p),
    "an attribute of an object": lambda p: _holder.kept(p),
    "a default": _with_default,
    "a closure": lambda p: _closure(p),
    "torch.Tensor": lambda p: torch.Tensor(p),
    "torch.DoubleTensor": lambda p: torch.DoubleTensor(p),
    "torch.DoubleTensor, imported before": lambda p: _double_tensor(p),
    "torch.to_dlpack": lambda p: vars(torch)["from_dlpack"](vars(torch)["to_dlpack"](p)),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor", "ignore:torch.asarray")
@pytest.mark.parametrize("name", READERS)
def test_whoever_reads_a_guarded_parameter_finds_it_current(name: str) -> None:
    """The guard doubles it, so whatever is read is doubled."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # which torch.Tensor takes alone
    try:
        parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def double(guarded: torch.Tensor) -> None:
            unguard(guarded)
            with torch.no_grad():
                guarded.mul_(2)

        guard(parameter, double)
        found = READERS[name](parameter)
        assert found.detach().tolist() == [2.0, 2.0, 2.0]
    finally:
        torch.set_default_dtype(default)


_FROZEN = """
import collections
import gc
import weakref
import torch
from torch import tensor
from pace.runtime.gates.guarded_tensors import guard, unguard

class Maker:
    made = torch.tensor

def with_default(value, make=torch.tensor):
    return make(value)

class Loop:
    def __init__(self):
        self.itself = self

def generated():
    make = torch.tensor
    value = yield
    yield make(value)

class Pair(tuple):
    def __new__(cls, first, second):  # no list of values
        return super().__new__(cls, (first, second))

Two = collections.namedtuple("Two", "first second")
in_pair = Pair(0, torch.tensor)
in_tuple, in_named, in_set = (0, torch.tensor), Two(0, torch.tensor), {torch.tensor}
nested, in_frozen = [(1, (torch.tensor,))], frozenset([torch.tensor])
inner = (torch.tensor,)
mixed = [(inner, torch.tensor, frozenset([inner])), inner]
many = [(number, torch.tensor) for number in range(300)]
in_deque = collections.deque([torch.tensor])
generator = generated()
next(generator)

gc.freeze()
passes, get_referrers = [], gc.get_referrers
gc.get_referrers = lambda *asked: passes.append(len(asked)) or get_referrers(*asked)
loop = Loop()
dropped = weakref.ref(loop)
asked = []
copies = {
    "a name": lambda p: tensor(p),
    "a default": with_default,
    "a class": lambda p: Maker.made(p),
    "a tuple": lambda p: in_tuple[1](p),
    "a named tuple": lambda p: in_named.second(p),
    "a tuple with a constructor": lambda p: in_pair[1](p),
    "a set": lambda p: next(iter(in_set))(p),
    "a frozen set": lambda p: next(iter(in_frozen))(p),
    "a deque": lambda p: in_deque[0](p),
    "a tuple in a tuple in a list": lambda p: nested[0][1][0](p),
    "a generator": lambda p: generator.send(p),
    "a tuple beside one that holds it": lambda p: mixed[0][0][0](p),
    "a tuple with others beside it": lambda p: mixed[0][1](p),
    "a frozen set of tuples": lambda p: next(iter(mixed[0][2]))[0](p),
    "the last of many tuples": lambda p: many[-1][1](p),
}

def ask(name, copy):
    parameter = torch.nn.Parameter(torch.ones(3))
    guard(parameter, lambda guarded: (asked.append(name), unguard(guarded)))
    copy(parameter)

def main():
    variable, variables = torch.tensor, (torch.tensor,)
    guard(torch.nn.Parameter(torch.ones(3)), unguard)  # patches are in place
    for name, copy in copies.items():
        ask(name, copy)
    ask("a variable", variable)
    ask("a tuple in a variable", variables[0])
    assert (type(in_named), type(in_pair)) == (Two, Pair)
    assert len({id(each[0]) for each in (mixed[0], [mixed[1]])}) == 1
    assert sum(asked > 0 for asked in passes) <= 10, passes  # each goes through all objects of the process

main()
copies |= {"a variable": None, "a tuple in a variable": None}
assert asked == list(copies), asked
del loop
gc.collect()
assert dropped() is None
"""


def test_names_kept_apart_from_the_collector_are_replaced_too() -> None:
    """As after ``gc.freeze()`` of programs that fork; and what was made since then does not live forever."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FROZEN], check=True)


# They give back the tensor itself, guarded as it is; or they are private, and only torch itself has them.
_HARMLESS = {"_as_tensor_fullprec", "_to_functional_tensor"}


@pytest.mark.parametrize(
    "space", ["torch", "torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special"]
)
def test_no_function_of_torch_makes_a_tensor_without_asking(space: str) -> None:
    """Every built-in one that can be called with a guarded tensor: more may come with the next torch."""
    guard(nn.Parameter(torch.ones(1)), unguard)  # patches are in place
    silent = set()
    module = sys.modules[space]
    for name in dir(module):
        function = getattr(module, name)
        if not inspect.isbuiltin(function) or name.startswith(("set_", "_set_", "init", "_init")):
            continue
        for arguments in (lambda p: (p,), lambda p: (p, p), lambda p: (p, 1), lambda p: ([p],)):
            parameter = nn.Parameter(torch.ones(2, 2))
            asked: list[torch.Tensor] = []

            def note(each: torch.Tensor, asked: list[torch.Tensor] = asked) -> None:
                asked.append(each)
                unguard(each)

            guard(parameter, note)
            try:
                made = function(*arguments(parameter))
            except Exception:
                continue
            finally:
                unguard(parameter)
            if isinstance(made, torch.Tensor) and made is not parameter and not asked:
                silent.add(name)
    assert silent - _HARMLESS == set()


def _scripted(values: torch.Tensor) -> torch.Tensor:
    return values + torch.tensor(1.0) + torch.as_tensor(2.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripts_call_what_is_replaced() -> None:
    """``torch.jit`` compiles such calls, as those in the optimizers of ``torch.distributed.optim``."""
    guard(nn.Parameter(torch.ones(1)), unguard)
    assert torch.jit.script(_scripted)(torch.ones(2)).tolist() == [4.0, 4.0]


def test_legacy_constructors_are_what_they_were() -> None:
    """Types of tensors, for ``isinstance``, ``type`` and the default."""
    guard(nn.Parameter(torch.ones(1)), unguard)
    assert isinstance(torch.ones(1), torch.FloatTensor)
    assert not isinstance(torch.ones(1), torch.DoubleTensor)
    assert torch.ones(1).type(vars(torch)["DoubleTensor"]).dtype is torch.float64
    assert torch.DoubleTensor([1, 2]).tolist() == [1.0, 2.0]
    assert torch.LongTensor(2, 3).shape == (2, 3)
    assert repr(torch.DoubleTensor) == "<class 'torch.DoubleTensor'>"
    assert len(torch_legacy_constructors()) > 30


def test_every_place_has_a_reason() -> None:
    """The list is what there is to know about the runtime's changes to torch."""
    assert all(":" in place and reason for place, reason in PLACES.items())
