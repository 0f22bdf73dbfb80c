"""One run of a training loop on real ranks: under the runtime, or plainly with gradients averaged by hand.

Loops are written once. Where plain data-parallel training averages gradients, a loop calls ``run.average``:
under the runtime that is nothing, and plainly an all-reduce of every gradient that any rank has. So it
stands where the gradients of a step are complete, before anything looks at them. Everything is in float64.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from tests.runtime.loop_device import made_on_cpu, moved, numbers, train_there
from tests.runtime.training import grouped, wrap

M = TypeVar("M", bound=nn.Module)


class Run:
    """What a loop may use.

    Attributes
    ----------
    wrapped
        Whether the loop runs under the runtime.
    steps
        How many steps a loop takes, about.
    seen
        What the loop wants compared: numbers, tensors, None, or lists of them.
    models
        Whose weights are compared at the end.
    """

    def __init__(
        self, rank: int, size: int, *, transport: str | None, steps: int, options: dict[str, Any]
    ) -> None:
        self.rank = rank
        self.size = size
        self.steps = steps
        self.wrapped = transport is not None
        self.seen: list[Any] = []
        self.models: list[nn.Module] = []
        self._transport = transport or "none"
        self._options = options
        self._wrappers: list[Any] = []

    def build(self, make: Callable[[], M]) -> M:
        """Make a model with the same weights in every process."""
        torch.manual_seed(17 + len(self.models))
        with made_on_cpu():
            model = make().double()
        model = moved(model)
        self.models.append(model)
        return model

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
        """Wrap an optimizer, or leave it as it is."""
        if not self.wrapped:
            return optimizer
        self._wrappers.append(wrap(self._transport, optimizer, model, **(self._options | options)))
        return self._wrappers[-1]

    def start(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[Any, Callable[..., Any]]:
        """Wrap an optimizer; return what the loop steps and what it calls.

        With the option ``attach`` that is the optimizer itself and the model in DistributedDataParallel.
        """
        if not self.wrapped or not self._options.get("attach"):
            return self.wrap(optimizer, model), model
        from pace.runtime.ddp import attach

        parallel = nn.parallel.DistributedDataParallel(model)
        options = grouped({"timeout_s": 60.0} | self._options)
        options.pop("attach")
        self._wrappers.append(attach(parallel, optimizer, **options))
        return optimizer, parallel

    @property
    def wrapper(self) -> Any:
        """The latest wrapper; None in a plain run."""
        return self._wrappers[-1] if self._wrappers else None

    def batch(self, number: int, *shape: int) -> torch.Tensor:
        """Draw numbers for one batch of this rank."""
        generator = torch.Generator().manual_seed(1000 * number + self.rank)
        return numbers(shape, generator)

    def average(self, *models: nn.Module) -> None:
        """Average gradients, where the runtime does not."""
        if self.wrapped:
            return
        parameters = list(dict.fromkeys(p for model in models for p in model.parameters()))
        given = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
        dist.all_reduce(given)
        alike: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter, ranks in zip(parameters, given.tolist(), strict=True):
            if ranks:
                alike.setdefault(parameter.dtype, []).append(parameter)
        for dtype, some in alike.items():
            self._average_flat(some, dtype)

    def _average_flat(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        """Average gradients in one all-reduce: one for each would take longer than the training."""
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes), dtype=dtype)
        parts = [
            part.view(parameter.shape)
            for part, parameter in zip(torch.split(flat, sizes), parameters, strict=True)
        ]
        for part, parameter in zip(parts, parameters, strict=True):
            if parameter.grad is not None:
                part += parameter.grad.detach()
        dist.all_reduce(flat)
        flat /= self.size
        for part, parameter in zip(parts, parameters, strict=True):
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            with torch.no_grad():
                parameter.grad.copy_(part)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        """Average a closure's loss, where the runtime does not."""
        return loss if self.wrapped else self.agree(loss.detach())

    def agree(self, value: torch.Tensor) -> torch.Tensor:
        """Average a value over all ranks by a collective of the loop's own."""
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def no_sync(self, optimizer: Any) -> contextlib.AbstractContextManager[None]:
        """Only accumulate, where the runtime would not."""
        if not self.wrapped:
            return contextlib.nullcontext()
        quiet: contextlib.AbstractContextManager[None] = optimizer.no_sync()
        return quiet

    def see(self, *values: Any) -> None:
        """Note values to compare."""
        self.seen.append([_copied(value) for value in values])

    def close(self) -> None:
        """Close all wrappers."""
        for wrapper in self._wrappers:
            wrapper.close()
        self._wrappers.clear()


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().cpu().numpy().copy()
    if isinstance(value, list | tuple):
        return [_copied(each) for each in value]
    return value


Loop = Callable[[Run], None]


def run_loop(
    rank: int, size: int, loop: Loop, transport: str | None, steps: int, options: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Run a loop; return the weights it ends with and what it saw. ``transport=None`` runs it plainly."""
    train_there()
    run = Run(rank, size, transport=transport, steps=steps, options=options)
    loop(run)
    run.see([value for model in run.models for value in model.state_dict().values()])
    run.close()
    weights = [_copied(value) for model in run.models for value in model.state_dict().values()]
    return weights, run.seen
