"""Plain training to compare with, and the same training under the runtime on real ranks."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.runtime.models import Batch, batches, build, weights

Weights = dict[str, Any]

OPTIMIZERS: dict[str, Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, amsgrad=True),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=1e-3),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.5),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=1e-3),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=1e-2),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True),
    "adam-fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, fused=True),
    "adagrad-fused": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2, fused=True),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way of training: a model, an optimizer, and the wrapper's options."""

    model: str = "conv"
    optimizer: str = "sgd"
    steps: int = 20
    options: dict[str, Any] = field(default_factory=dict)
    double: bool = False

    def __str__(self) -> str:
        shown = "-".join(f"{name}={value}" for name, value in self.options.items())
        width = "float64" if self.double else ""
        return "-".join(part for part in (self.model, self.optimizer, width, shown) if part)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Put options that are given by name into the objects that have them.

    What says "over": "servers" or "mixed" sums gradients on parameter servers.
    """
    from pace.runtime.options import AllReduce, Plan

    left = dict(options)
    kind: Any = AllReduce
    if over := left.pop("over", None):
        from pace_servers.runtime import Mixed, ParameterServers

        kind = {"servers": ParameterServers, "mixed": Mixed}[over]

    def taken(kind: Any) -> dict[str, Any]:
        return {each.name: left.pop(each.name) for each in fields(kind) if each.name in left}

    carried, followed = taken(kind), taken(Plan)
    if carried or kind is not AllReduce:
        left["communication"] = kind(**carried)
    return {"plan": Plan(**followed), **left}


def wrap(transport: str, optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
    """Wrap an optimizer for the transport that the ranks were launched with."""
    options = grouped({"timeout_s": 60.0, "mode": "overlap", **options})
    if transport == "horovod":
        import pace.runtime.horovod

        pace.runtime.horovod.init()
        return pace.runtime.horovod.DistributedOptimizer(optimizer, model=model, **options)
    import pace.runtime.torch

    return pace.runtime.torch.DistributedOptimizer(optimizer, model, **options)


def meet(transport: str) -> None:
    """Wait for all ranks in a barrier of the job's own: on a busy machine some start long after others."""
    if transport == "horovod":
        import horovod.torch as hvd

        import pace.runtime.horovod

        pace.runtime.horovod.init()
        hvd.barrier()
        return
    import torch.distributed as dist

    import pace.runtime.torch

    dist.barrier()


def backward(loss: torch.Tensor) -> None:
    """Run the backward pass."""
    torch.autograd.backward(loss)


def train_case(rank: int, transport: str, case: Case) -> Weights:
    """Train on this rank's batches under the runtime."""
    model = build(case.model, double=case.double)
    optimizer = wrap(transport, OPTIMIZERS[case.optimizer](trainable(model)), model, **case.options)
    for batch in batches(case.model, case.steps, rank, double=case.double):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    trained = weights(model)
    optimizer.close()
    return trained


def train_with_ddp(rank: int, case: Case) -> Weights:
    """Train on this rank's batches under torch's own data parallelism."""
    model = build(case.model, double=case.double)
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=case.model == "branches")
    optimizer = OPTIMIZERS[case.optimizer](trainable(model))
    for batch in batches(case.model, case.steps, rank, double=case.double):
        optimizer.zero_grad()
        backward(parallel(*batch))
        optimizer.step()
    return weights(model)


def train_cases(rank: int, _size: int, transport: str, cases: list[Case]) -> list[Weights]:
    """Train one case after the other in the same processes."""
    return [train_case(rank, transport, case) for case in cases]


def train_plainly(
    case: Case,
    size: int,
    *,
    repeat: bool = False,
) -> Weights:
    """Train in one process on every rank's batches: what data-parallel training must equal.

    The weights are not to be changed. With `repeat`, every step uses the first batch.
    """
    return _trained_plainly(case.model, case.optimizer, case.steps, case.double, size, repeat)


@functools.cache  # cases differ in options that plain training does not have
def _trained_plainly(
    name: str, optimizer_name: str, steps: int, double: bool, size: int, repeat: bool
) -> Weights:
    model = build(name, double=double)
    optimizer = OPTIMIZERS[optimizer_name](trainable(model))
    shares = [batches(name, steps, rank, double=double) for rank in range(size)]
    for step in range(steps):
        optimizer.zero_grad()
        average_gradients(model, [share[0 if repeat else step] for share in shares])
        optimizer.step()
    return weights(model)


def average_gradients(model: nn.Module, parts: Sequence[Batch]) -> None:
    """Leave the mean of the parts' gradients in the parameters: dense, and none where no part has one."""
    for part in parts:
        backward(model(*part) / len(parts))
    for parameter in trainable(model):
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def difference(left: Weights, right: Weights) -> float:
    """The largest difference of two sets of weights, relative to the largest weight of each tensor."""
    assert left.keys() == right.keys()
    return max(
        float(np.abs(left[name] - right[name]).max() / max(np.abs(right[name]).max(), 1e-12)) for name in left
    )


def equal_bits(left: Weights, right: Weights) -> bool:
    """Whether two sets of weights are the same to the bit."""
    return left.keys() == right.keys() and all(left[n].tobytes() == right[n].tobytes() for n in left)
