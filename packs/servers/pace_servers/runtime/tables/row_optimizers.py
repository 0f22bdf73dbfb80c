"""Optimizers that update rows of a table where they are stored, and their state beside each row.

They follow torch's optimizers on sparse gradients: a row without a gradient does not change.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import is_number, refusal
from pace_servers.runtime.tables.initial_rows import RowArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptimizer:
    """What all of them have.

    Attributes
    ----------
    lr
        Learning rate.
    """

    lr: float

    def __post_init__(self) -> None:
        """Refuse numbers that are none, or negative."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_number(value) or not 0 <= value < math.inf:
                raise refusal(field.name, value, "a finite number of at least 0")

    def state_width(self, width: int) -> int:  # noqa: ARG002  # others need it
        """Return how many numbers of state belong to a row of `width`."""
        return 0

    def updated(
        self, rows: RowArray, state: RowArray, gradients: RowArray, step: int
    ) -> tuple[RowArray, RowArray]:
        """Return rows and their state after an update.

        Parameters
        ----------
        rows, gradients : arrays of shape (num_rows, width)
        state : array of shape (num_rows, state_width)
        step
            How many updates the table has had, this one included.
        """
        raise NotImplementedError

    @property
    def document(self) -> dict[str, Any]:
        """What servers are told."""
        return {"kind": type(self).__name__} | asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSGD(RowOptimizer):
    """Stochastic gradient descent, as ``torch.optim.SGD`` without momentum."""

    def updated(
        self,
        rows: RowArray,
        state: RowArray,
        gradients: RowArray,
        step: int,  # noqa: ARG002
    ) -> tuple[RowArray, RowArray]:
        """Return rows after a step."""
        return rows - np.float32(self.lr) * gradients, state


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAdagrad(RowOptimizer):
    """As ``torch.optim.Adagrad``: a sum of squares for each number."""

    eps: float = 1e-10

    def state_width(self, width: int) -> int:
        """Return one number for each of the row."""
        return width

    def updated(
        self,
        rows: RowArray,
        state: RowArray,
        gradients: RowArray,
        step: int,  # noqa: ARG002
    ) -> tuple[RowArray, RowArray]:
        """Return rows and sums after a step."""
        sums = state + gradients * gradients
        changed = np.float32(self.lr) * gradients / (np.sqrt(sums) + np.float32(self.eps))
        return np.asarray(rows - changed, dtype=np.float32), sums


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one sum for each row, of its mean squares: FBGEMM's ``EXACT_ROWWISE_ADAGRAD``."""

    eps: float = 1e-8

    def state_width(self, width: int) -> int:  # noqa: ARG002
        """Return one."""
        return 1

    def updated(
        self,
        rows: RowArray,
        state: RowArray,
        gradients: RowArray,
        step: int,  # noqa: ARG002
    ) -> tuple[RowArray, RowArray]:
        """Return rows and sums after a step."""
        sums = state + (gradients * gradients).mean(axis=1, keepdims=True)
        changed = np.float32(self.lr) * gradients / (np.sqrt(sums) + np.float32(self.eps))
        return np.asarray(rows - changed, dtype=np.float32), sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyAdam(RowOptimizer):
    """As ``torch.optim.SparseAdam``: both means of a row change only when it has a gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def state_width(self, width: int) -> int:
        """Return two numbers for each of the row."""
        return 2 * width

    def updated(
        self, rows: RowArray, state: RowArray, gradients: RowArray, step: int
    ) -> tuple[RowArray, RowArray]:
        """Return rows and means after a step."""
        width = rows.shape[1]
        mean = state[:, :width] + np.float32(1 - self.beta1) * (gradients - state[:, :width])
        square = state[:, width:] + np.float32(1 - self.beta2) * (gradients * gradients - state[:, width:])
        size = np.float32(self.lr * np.sqrt(1 - self.beta2**step) / (1 - self.beta1**step))
        changed = size * mean / (np.sqrt(square) + np.float32(self.eps))
        return np.asarray(rows - changed, dtype=np.float32), np.hstack([mean, square])


_KINDS: dict[str, type[RowOptimizer]] = {
    kind.__name__: kind for kind in (RowSGD, RowAdagrad, RowWiseAdagrad, LazyAdam)
}


def read_row_optimizer(document: dict[str, Any]) -> RowOptimizer:
    """Return the optimizer of a ``document``.

    Raises
    ------
    InvalidOptions
        When there is none like it.
    """
    given = dict(document)
    kind = _KINDS.get(given.pop("kind", ""))
    try:
        if kind is not None:
            return kind(**given)
    except TypeError:
        pass
    raise InvalidOptions(f"optimizer is {document!r}: expected one of {', '.join(_KINDS)}")
