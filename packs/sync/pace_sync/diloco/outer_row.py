"""What every outer step does with a row of numbers: its outer model, and the optimizer that means move."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from pace.errors import InvalidUse
from pace_fabric.runtime.commit_log import Vector
from pace_sync.diloco.parameter_parts import ParameterPart, read_parts, write_parts

MakeOuter = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the outer optimizer of one row; SGD with Nesterov momentum in the paper (arXiv 2311.08105)."""


class OuterRow:
    """The outer model of some parts of a worker's model, float32, and its outer optimizer.

    A worker in 16 bits gets rounded numbers. What rounding leaves out is kept here: it is no change by the
    worker, so it is in no pseudo-gradient.

    Attributes
    ----------
    row
        The outer model, in one row.
    optimizer
        Works on `row`.
    """

    def __init__(self, parts: list[ParameterPart], make_outer: MakeOuter) -> None:
        self._parts = parts
        self.row = nn.Parameter(read_parts(parts))
        self.optimizer = make_outer([self.row])
        self._left_out: torch.Tensor | None = None

    def change(self) -> Vector:
        """Return the pseudo-gradient: the outer model less the worker's (arXiv 2501.18512, algorithm 2)."""
        return (self.row.detach() - self._worker()).numpy()

    def _worker(self) -> torch.Tensor:
        worker = read_parts(self._parts)
        return worker if self._left_out is None else worker.add_(self._left_out)

    def move(self, mean: Vector) -> None:
        """Move the outer model by a mean of changes, as if it were a gradient."""
        self.row.grad = torch.from_numpy(np.array(mean, dtype=np.float32))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the outer model and optimizer, and what the worker's type leaves out."""
        row, optimizer = self.row.detach().clone(), self.optimizer.state_dict()
        return {"row": row, "optimizer": optimizer, "left_out": self._left_out}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; load the worker's own model beside it, or ``give`` it this one.

        Raises
        ------
        InvalidUse
            When the row is of another model.
        """
        row = state["row"]
        if row.shape != self.row.shape:
            raise InvalidUse(
                f"the state has {row.numel():,} parameters, but the model has {self.row.numel():,}"
            )
        with torch.no_grad():
            self.row.copy_(row)
        self.optimizer.load_state_dict(state["optimizer"])
        self._left_out = state["left_out"]

    def give(self, mix: float = 0.0) -> None:
        """Write the outer model into the worker's, in the worker's type.

        Parameters
        ----------
        mix
            Share of the worker's own numbers in the result, from 0 to 1.
        """
        row = self.row.detach()
        given = torch.lerp(row, self._worker(), mix) if mix else row
        write_parts(self._parts, given)
        narrow = any(part.parameter.dtype.itemsize < row.itemsize for part in self._parts)
        self._left_out = given - read_parts(self._parts) if narrow else None


def whole_model(model: nn.Module) -> list[ParameterPart]:
    """Return all parameters of a model, in order.

    Raises
    ------
    InvalidUse
        When there are none.
    """
    parts = [ParameterPart(each, 0, each.numel()) for each in model.parameters()]
    if not parts:
        raise InvalidUse("the model has no parameters")
    return parts
