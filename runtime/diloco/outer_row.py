"""What every outer step does with a row of numbers: its outer model, and the optimizer that means move."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.diloco.parameter_parts import ParameterPart, read_parts, write_parts
from pace.runtime.fabric.commit_log import Vector

MakeOuter = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the outer optimizer of one row; SGD with Nesterov momentum in the paper (arXiv 2311.08105)."""


class OuterRow:
    """The outer model of some parts of a worker's model, float32, and its outer optimizer.

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

    def read(self) -> torch.Tensor:
        """Return a copy of the worker's numbers."""
        return read_parts(self._parts)

    def move(self, mean: Vector) -> None:
        """Move the outer model by a mean of changes, as if it were a gradient."""
        self.row.grad = torch.from_numpy(np.array(mean, dtype=np.float32))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def load(self, row: torch.Tensor, optimizer: dict[str, Any]) -> None:
        """Go on from a row and the state of its outer optimizer.

        Raises
        ------
        InvalidUse
            When the row is of another model.
        """
        if row.shape != self.row.shape:
            raise InvalidUse(f"a state of {row.numel():,} parameters, the model has {self.row.numel():,}")
        with torch.no_grad():
            self.row.copy_(row)
        self.optimizer.load_state_dict(optimizer)

    def give(self, mix: float = 0.0) -> None:
        """Write the outer model into the worker's, in the worker's type.

        Parameters
        ----------
        mix
            Share of the worker's own numbers in the result, from 0 to 1.
        """
        row = self.row.detach()
        write_parts(self._parts, torch.lerp(row, self.read(), mix) if mix else row)


def whole_model(model: nn.Module) -> list[ParameterPart]:
    """Return all parameters of a model, in order.

    Raises
    ------
    InvalidUse
        When there are none.
    """
    parts = [ParameterPart(each, 0, each.numel()) for each in model.parameters()]
    if not parts:
        raise InvalidUse("a model without parameters")
    return parts
