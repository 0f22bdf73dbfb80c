"""What user code sees in a random loop: ways to read gradients, and records of what was read."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.runtime.loops.loop_program import Operation


class Unseen:
    """Stands for what plain training cannot say about a rank: nothing is compared with it."""


UNSEEN = Unseen()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a rank saw in one operation: None, numbers, arrays, or lists of them."""

    operation: Operation
    value: Any
    same_bits: bool = False


def plain(value: Any) -> Any:
    """Copy a value so that it travels between processes and nothing can change it."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().cpu().numpy().copy()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def read_gradients(gradients: Sequence[torch.Tensor], how: str) -> Any:
    """Read gradients in one of the ways in which user code does."""
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "norm": lambda g: float(g.norm()),
        "abs": lambda g: float(abs(g).sum()),
        "item": lambda g: g.flatten()[0].item(),
        "list": lambda g: g.tolist(),
        "numpy": lambda g: g.cpu().numpy().copy(),
        "data": lambda g: g.data.clone(),
        "detach": lambda g: g.detach().clone(),
        "clone": lambda g: g.clone(),
        "copy": lambda g: copy.deepcopy(g).detach(),
        "dot": lambda g: float(torch.dot(g.flatten(), g.flatten())),
        "linalg": lambda g: float(torch.linalg.vector_norm(g)),
        "finite": lambda g: bool(torch.isfinite(g).all()),
        "print": lambda g: len(str(g)) > 0,
    }
    if how == "foreach":
        return [float(norm) for norm in torch._foreach_norm(list(gradients))] if gradients else []
    return [ways[how](gradient) for gradient in gradients]


READS_OF_GRADIENTS = [
    "norm",
    "abs",
    "item",
    "list",
    "numpy",
    "data",
    "detach",
    "clone",
    "copy",
    "dot",
    "linalg",
    "finite",
    "print",
    "foreach",
    "none",
]
