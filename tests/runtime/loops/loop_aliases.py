"""Operations of random loops that use parameters, gradients, groups and state by references of their own.

References to parameters and groups are from before the optimizer is wrapped, the others from when an
operation takes them. ``loop_trainer.Trainer`` has these operations; the reference and the ranks share them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tests.runtime.loop_device import ON_CPU, numbers
from tests.runtime.loops.forked_loops import in_child
from tests.runtime.loops.loop_models import BATCH, WIDTH, Pass, Units
from tests.runtime.loops.loop_program import Program
from tests.runtime.loops.loop_readings import plain


class Aliases(ABC):
    """What a loop keeps, and what it does through it.

    Attributes
    ----------
    inner
        The torch optimizer, as it was before it was wrapped.
    groups
        Its groups from then.
    kept
        Gradients.
    """

    program: Program
    model: Units
    call: Pass
    inner: Any
    optimizer: Any
    parameters: list[nn.Parameter]
    kept: list[torch.Tensor | None]

    def keep_first(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep what there is before wrapping."""
        self.inner = optimizer
        self.groups = list(optimizer.param_groups)
        self.aliases: list[torch.Tensor] = []
        self.flat: torch.Tensor | None = None
        self.state_tensors: list[torch.Tensor] = []
        self.patched: tuple[Any] | None = None
        self.late: nn.Module | None = None

    @abstractmethod
    def look(self, code: Callable[[], Any]) -> None:
        """Run code that looks at gradients and note what it says."""

    @abstractmethod
    def say(self, value: Any, *, same_bits: bool = False) -> None:
        """Note what user code sees that is the same on every rank."""

    @abstractmethod
    def loss_of(self, path: Sequence[int], seed: int) -> torch.Tensor:
        """The loss of a batch."""

    def penalty(self) -> torch.Tensor:
        """A penalty of kept parameters."""
        return torch.stack([parameter.pow(2).sum() for parameter in self.parameters]).sum() * 0.01

    def through_late_module(self, hidden: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        """Run the model behind a module made after wrapping, which has the first unit's parameters."""
        if self.late is None:
            first: Any = self.model.units[0]
            late = nn.Linear(WIDTH, WIDTH)
            late.weight, late.bias = first.weight, first.bias
            self.late = late
        return self.call(self.late(hidden), path)

    # Gradients.

    def _kept_scale(self, factor: float) -> None:
        def code() -> None:
            with torch.no_grad():
                for gradient in self.kept:
                    if gradient is not None:
                        gradient.mul_(factor)

        self.look(code)

    def _kept_read(self) -> None:
        self.look(lambda: [gradient for gradient in self.kept if gradient is not None])

    def _flat(self) -> None:
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        flat = torch.zeros(sum(p.numel() for p in trained), dtype=torch.float64)
        for parameter, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            gradient = part.view(parameter.shape)
            if parameter.stride() != gradient.stride():
                gradient = part.as_strided(parameter.shape, parameter.stride())
            self.put_gradient(parameter, gradient)
        self.flat = flat

    def put_gradient(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Put a tensor that is the same on all ranks into ``parameter.grad``."""
        parameter.grad = gradient

    def _flat_scale(self, factor: float) -> None:
        if self.flat is not None:
            flat = self.flat
            self.look(lambda: flat.mul_(factor).norm())

    # Parameters.

    def _alias(self, way: str) -> None:
        if way == "data" or (way == "numpy" and not ON_CPU):
            self.aliases = [parameter.data for parameter in self.parameters]
        elif way == "state":
            self.aliases = list(self.model.state_dict().values())
        else:
            self.aliases = [torch.from_numpy(p.detach().numpy()) for p in self.parameters]

    def _aliased(self) -> None:
        self.say(list(self.aliases), same_bits=True)

    def _alias_clamp(self, limit: float) -> None:
        for alias in self.aliases:
            alias.clamp_(-limit, limit)

    def _fork(self, path: Sequence[int]) -> None:
        def evaluate() -> Any:
            with torch.no_grad():
                return plain([self.loss_of(path, 7), self.parameters])

        self.say(self.in_child(evaluate))

    def in_child(self, work: Callable[[], Any]) -> Any:
        """Run code in a forked process; a GPU cannot be used there."""
        return in_child(work) if ON_CPU else work()

    def _func(self, path: Sequence[int]) -> None:
        if "checkpointed" in self.program.kinds:  # which torch.func refuses
            return
        generator = torch.Generator().manual_seed(9)
        inputs = numbers((3, BATCH, WIDTH), generator)

        def loss(hidden: torch.Tensor) -> torch.Tensor:
            return self.call(hidden, path).pow(2).sum()

        self.say(torch.func.vmap(torch.func.grad(loss))(inputs))

    # The optimizer.

    def _kept_rate(self, factor: float) -> None:
        for group in self.groups:
            group["lr"] *= factor

    def _state_hold(self) -> None:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        tensors = [state[key] for state in states for key in sorted(state)]
        self.state_tensors = [each for each in tensors if isinstance(each, torch.Tensor) and each.dim()]

    def _state_read(self) -> None:
        self.say(list(self.state_tensors), same_bits=True)

    def _state_scale(self, factor: float) -> None:
        for tensor in self.state_tensors:
            tensor.mul_(factor)

    def _state_edit(self, factor: float) -> None:
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim():
                    value.mul_(factor)

    def _patch(self, factor: float) -> None:
        if self.patched is not None:
            return
        self.patched = (vars(self.inner).get("step"),)
        own = self.inner.step

        def step(closure: Any = None) -> Any:
            if closure is None and self.program.wrapping is None:
                for parameter in self.parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)
            loss = own(closure) if closure is not None else own()
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.mul_(factor)
            return loss

        self.inner.step = step

    def _unpatch(self) -> None:
        if self.patched is None:
            return
        (before,), self.patched = self.patched, None
        if before is None:
            del self.inner.step
        else:
            self.inner.step = before
