"""Guards on tensors: what asks them, and what does not."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from pace.runtime.gates.function_watch import ignore_functions, watch_functions
from pace.runtime.gates.guarded_tensors import guard, guarded, unguard, without_guards
from pace.runtime.optimizer.group_update import plain_mode


class _Bench:
    """A guarded parameter of ones, or another tensor, which its guard doubles, after a step."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.parameter: Any = nn.Parameter(torch.ones(3, 3)) if tensor is None else tensor
        self.asked = 0
        guard(self.parameter, self)
        watch_functions()

    def __call__(self, tensor: torch.Tensor) -> None:
        self.asked += 1
        with without_guards(), plain_mode("cpu"):
            tensor.mul_(2)
        unguard(tensor)


@pytest.fixture
def bench() -> Iterator[_Bench]:
    """See ``_Bench``."""
    made = _Bench()
    yield made
    unguard(made.parameter)
    ignore_functions()


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def _gradient_by(weights: torch.Tensor) -> torch.Tensor:
    x = torch.ones(3, 3, requires_grad=True)
    return torch.autograd.grad(x * 1, x, grad_outputs=weights)[0]


def _saved(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


_TWOS: dict[str, Callable[[nn.Parameter], Any]] = {
    "add": lambda p: p + 0,
    "from the right": lambda p: 0 + p,
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "clone": lambda p: p.clone(),
    "numpy": lambda p: p.detach().numpy(),
    "list": lambda p: np.array(p.tolist()),
    "stack": lambda p: torch.stack([p])[0],
    "foreach": lambda p: torch._foreach_add([p], 0)[0],
    "copied from": lambda p: torch.zeros(3, 3).copy_(p),
    "linear": lambda p: nn.functional.linear(torch.eye(3), p),
    "functional call": lambda p: torch.func.functional_call(
        nn.Linear(3, 3, bias=False), {"weight": p}, torch.eye(3)
    ),
    "vmap": lambda p: torch.func.vmap(lambda x: x * p)(torch.ones(1, 3, 3))[0],
    "vmap of itself": lambda p: torch.func.vmap(lambda w: w * 1)(p),
    "grad": lambda p: torch.func.grad(lambda w: (w * w).sum())(p) / 2,
    "vjp": lambda p: torch.func.vjp(lambda w: w * 1, p)[0],
    "jacobian": lambda p: torch.func.jacrev(lambda w: (w * w).sum())(p) / 2,
    "functionalized": lambda p: torch.func.functionalize(lambda w: w * 1)(p),
    "cotangent": lambda p: torch.func.vjp(lambda x: x * 1, torch.ones(3, 3))[1](p)[0],
    "gradient of an output": lambda p: _gradient_by(p),
    "operator": lambda p: torch.ops.aten.add.Tensor(p, 0),
    "keyword": lambda p: torch.add(input=p, other=0),
    "deepcopy": copy.deepcopy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "save": _saved,
    "vector": lambda p: nn.utils.parameters_to_vector([p]).view(3, 3),
    "function": lambda p: _Doubled.apply(p) / 2,  # type: ignore[no-untyped-call]  # in torch
    "rows": lambda p: torch.stack(list(p)),
    "array of a copy": lambda p: torch.asarray(p, copy=True, requires_grad=False),
    "new tensor": lambda p: torch.zeros(1).new_tensor(p),
    "sparse": lambda p: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 2]]), p, check_invariants=True
    ).to_dense(),
    "exchanged": lambda p: torch.utils.dlpack.from_dlpack(p.requires_grad_(False)),
    "another class": lambda p: p.as_subclass(torch.Tensor),
}


@pytest.mark.filterwarnings("ignore:.*copy construct from a tensor")
@pytest.mark.parametrize("way", _TWOS)
def test_whoever_uses_a_value_asks_the_guard_first(bench: _Bench, way: str) -> None:
    """And finds what the guard has made of it; the class is as before, and so is the object."""
    found = torch.as_tensor(_TWOS[way](bench.parameter))
    assert bench.asked == 1
    assert torch.equal(found, torch.full((3, 3), 2.0))
    assert type(bench.parameter) is nn.Parameter
    assert not guarded(bench.parameter)


_DESCRIPTIONS: dict[str, Callable[[nn.Parameter], Any]] = {
    "shape": lambda p: p.shape,
    "size": lambda p: p.size(0),
    "dtype": lambda p: p.dtype,
    "device": lambda p: p.device,
    "stride": lambda p: p.stride(),
    "numel": lambda p: p.numel(),
    "length": len,
    "gradient": lambda p: p.grad,
    "new gradient": lambda p: setattr(p, "grad", torch.ones(3, 3)),
    "freezing": lambda p: p.requires_grad_(False),
    "hook": lambda p: p.register_hook(lambda gradient: gradient),  # type: ignore[no-untyped-call]  # in torch
    "key": lambda p: {p: 1}[p],
    "kind": lambda p: isinstance(p, nn.Parameter) and torch.is_floating_point(p),
    "registering": lambda p: nn.Module().register_parameter("weight", p),
    "optimizer": lambda p: torch.optim.SGD([p], lr=0.1),
}


@pytest.mark.parametrize("description", _DESCRIPTIONS)
def test_descriptions_do_not_ask(bench: _Bench, description: str) -> None:
    """Shapes, hooks and gradients are there at any time."""
    _DESCRIPTIONS[description](bench.parameter)
    assert bench.asked == 0
    assert guarded(bench.parameter)


def test_a_guard_that_raises_keeps_the_value_from_everybody(bench: _Bench) -> None:
    """The error reaches whoever uses the tensor, again and again."""

    def refuse(_tensor: torch.Tensor) -> None:
        raise ValueError("not yet")

    guard(bench.parameter, refuse)
    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            bench.parameter.sum()


def test_other_threads_ask_too(bench: _Bench) -> None:
    """Guards are the tensor's, not the thread's."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(bench.parameter.sum().item()))
    thread.start()
    thread.join()
    assert found == [18.0]


def test_a_value_that_became_current_while_torch_called_is_used(bench: _Bench) -> None:
    """As by another thread, or by Dynamo, which compiles the code that answers torch."""
    kind: Any = type(bench.parameter)
    bench(bench.parameter)
    total = kind.__torch_function__(torch.add, (kind,), (torch.ones(3, 3), bench.parameter))
    assert bench.asked == 1
    assert total.sum() == 27


def test_plain_tensors_can_be_guarded() -> None:
    """An optimizer's state is of plain tensors."""
    tensor = torch.ones(2)
    guard(tensor, unguard)
    assert guarded(tensor)
    assert float(tensor.sum()) == 2.0
    assert type(tensor) is torch.Tensor


class _Labeled(nn.Parameter):
    """A kind of parameter with a method that torch does not announce."""

    def doubled(self) -> torch.Tensor:
        """Return it twice."""
        with torch._C.DisableTorchFunctionSubclass():
            return self + self


def _two() -> Any:
    """Return a parameter whose values are in two tensors that are its attributes."""
    made: Any = TwoTensor(torch.ones(3, 3), torch.ones(3, 3))  # type: ignore[no-untyped-call]  # in torch
    return nn.Parameter(made)


_TWOS_OF_SUBCLASS: dict[str, tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]] = {
    "attribute": (_two, lambda p: p.a),
    "attribute by name": (_two, lambda p: vars(p)["b"]),
    "flattened": (_two, lambda p: getattr(p, p.__tensor_flatten__()[0][0])),
    "unbound": (_two, lambda p: getattr(p, TwoTensor.__tensor_flatten__(p)[0][0])),  # type: ignore[no-untyped-call]  # in torch
    "copy": (_two, lambda p: copy.copy(p).a),
    "operator": (_two, lambda p: (p + 0).b),
    "transform": (_two, lambda p: torch.func.grad(lambda w: (w * w).sum())(p).a / 2),
    "method": (lambda: _Labeled(torch.ones(3, 3)), lambda p: p.doubled() / 2),
}


@pytest.mark.parametrize("way", _TWOS_OF_SUBCLASS)
def test_attributes_and_methods_of_subclasses_ask_the_guard_first(way: str) -> None:
    """A subclass of tensors may keep its values in other tensors, which nobody guards."""
    make, read = _TWOS_OF_SUBCLASS[way]
    bench = _Bench(make())
    assert torch.equal(read(bench.parameter), torch.full((3, 3), 2.0))
    assert bench.asked == 1


def test_setting_an_attribute_of_a_subclass_asks_the_guard_first() -> None:
    """What replaces its values stays."""
    bench = _Bench(_two())
    bench.parameter.a = torch.zeros(3, 3)
    assert float((bench.parameter.a + bench.parameter.b).sum()) == 18.0


@pytest.mark.parametrize("description", _DESCRIPTIONS)
def test_descriptions_of_subclasses_do_not_ask(description: str) -> None:
    """As those of plain tensors."""
    bench = _Bench(_two())
    _DESCRIPTIONS[description](bench.parameter)
    assert bench.asked == 0
    assert guarded(bench.parameter)
