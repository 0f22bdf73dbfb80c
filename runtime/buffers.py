"""Fused buffers: where every gradient lies, and the gradients that the training loop sees.

A gradient that autograd has accumulated is moved into its place in its group's buffer and
``parameter.grad`` becomes a view of that place, so that no second copy of the gradients exists.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pace.runtime.plan import Plan, PlannedGroup


class SharedGradient(torch.Tensor):
    """A view of a fused buffer that waits for its all-reduce before anybody reads or writes it.

    What user code finds in ``parameter.grad``. Clipping, unscaling or logging a gradient in flight
    waits instead of reading half-reduced values. Autograd's own accumulation does not pass here.
    """

    settle: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Wait for every shared gradient among the arguments, unless only metadata is asked for."""
        if func not in _METADATA:
            for argument in (*args, *(kwargs or {}).values()):
                for tensor in argument if isinstance(argument, list | tuple) else (argument,):
                    if isinstance(tensor, SharedGradient):
                        tensor.settle()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


_METADATA = frozenset(
    [
        getattr(torch.Tensor, name).__get__
        for name in ("dtype", "device", "shape", "layout", "is_sparse", "is_cuda", "grad_fn", "requires_grad")
    ]
    + [torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_complex]
)


class Slot:
    """One gradient's place in its group's buffer.

    Attributes
    ----------
    view, shared
        The same memory: a plain tensor for the runtime, and what user code sees.
    filled
        Whether this round's gradient lies in the buffer.
    passes
        How often autograd has accumulated into the gradient in this round.
    expected
        How often it does so before the gradient is complete.
    claimed
        Whether a gate or a hook saw the parameter being used in the first round.
    skip
        Whether the user took the gradient away, so that the update leaves the parameter alone.
    """

    __slots__ = (
        "claimed",
        "expected",
        "filled",
        "fused",
        "name",
        "parameter",
        "passes",
        "shared",
        "skip",
        "view",
    )

    def __init__(
        self, name: str, parameter: torch.nn.Parameter, fused: "FusedGroup", view: torch.Tensor
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.fused = fused
        # Same memory, but no views as far as autograd knows: user code may detach gradients in place.
        self.view = view.data
        self.shared = torch.Tensor._make_subclass(SharedGradient, view.data)
        self.filled = False
        self.passes = 0
        self.expected = 1
        self.skip = False
        self.claimed = False


class FusedGroup:
    """A group's buffer, the gradients in it, and how far this round has come.

    Attributes
    ----------
    missing
        Gradients that are not yet in the buffer.
    submitted
        Whether the engine has it, or had it, in this round.
    pending
        Whether ``step()`` was called and its update is still to be applied.
    zero_after
        Whether ``zero_grad(set_to_none=False)`` waits for the update.
    """

    __slots__ = ("buffer", "missing", "number", "pending", "planned", "slots", "submitted", "zero_after")

    def __init__(self, number: int, planned: PlannedGroup, buffer: torch.Tensor) -> None:
        self.number = number
        self.planned = planned
        self.buffer = buffer
        self.slots: list[Slot] = []
        self.missing = len(planned.gradients)
        self.submitted = False
        self.pending = False
        self.zero_after = False


def build_groups(plan: Plan, parameters: Mapping[str, torch.nn.Parameter]) -> list[FusedGroup]:
    """Allocate one zeroed buffer a group and lay its gradients out in it."""
    groups = []
    for number, planned in enumerate(plan.groups):
        first = parameters[planned.gradients[0]]
        sizes = [parameters[name].numel() for name in planned.gradients]
        buffer = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        group = FusedGroup(number, planned, buffer)
        offset = 0
        for name, size in zip(planned.gradients, sizes, strict=True):
            parameter = parameters[name]
            view = buffer[offset : offset + size].view_as(parameter)
            group.slots.append(Slot(name, parameter, group, view))
            offset += size
        groups.append(group)
    return groups


def segment_tensors(plan: Plan, groups: list[FusedGroup]) -> list[torch.Tensor]:
    """For every segment of the plan, the part of its group's buffer that it sends."""
    tensors = []
    for planned in plan.segments:
        buffer = groups[planned.group].buffer
        element = buffer.element_size()
        start = planned.offset_bytes // element
        tensors.append(buffer[start : start + planned.size_bytes // element])
    return tensors
