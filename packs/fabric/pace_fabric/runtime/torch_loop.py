"""Training loops of torch on a fabric: parameters as one row, pushed as updates."""

import torch
from torch import nn

from pace.errors import InvalidUse
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.client_answers import TicketEnd, UpdateTicket
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.formats.error_feedback import ErrorFeedback, NarrowUpdate
from pace_fabric.runtime.sparse_update import SparseUpdate


def row_of(model: nn.Module) -> Vector:
    """Return a copy of a model's parameters, in order, as one row of float32.

    Raises
    ------
    InvalidUse
        When there are none.
    """
    rows = [parameter.detach().to("cpu", torch.float32).reshape(-1) for parameter in model.parameters()]
    if not rows:
        raise InvalidUse("the model has no parameters")
    row: Vector = torch.cat(rows).numpy().copy()
    return row


def load_row(model: nn.Module, row: Vector) -> None:
    """Write a row into a model's parameters.

    Raises
    ------
    InvalidUse
        When it is of another length.
    """
    total = sum(parameter.numel() for parameter in model.parameters())
    if total != len(row):
        raise InvalidUse(f"the model has {total:,} parameters, but the row has {len(row):,}")
    flat, position = torch.from_numpy(row.copy()), 0
    with torch.no_grad():
        for parameter in model.parameters():
            part = flat[position : position + parameter.numel()]
            parameter.copy_(part.view_as(parameter))
            position += parameter.numel()


class AsynchronousWorker:
    """Takes the server's model, trains it in place, and pushes the difference.

    Parameters
    ----------
    most_under_way
        How many updates may wait for their commit; ``push`` waits for the oldest beyond that.
    sparse
        Whether to send only the numbers that have changed: for models that are mostly embeddings.
    feedback
        Makes updates smaller, and adds what that leaves out to the next one.
    """

    def __init__(
        self,
        model: nn.Module,
        fabric: FabricClient,
        *,
        most_under_way: int = 1,
        sparse: bool = False,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        if sparse and feedback is not None:
            raise InvalidUse("sparse and feedback are two ways to make updates small: choose one")
        if most_under_way < 0:
            raise InvalidUse(f"most_under_way is {most_under_way}; at least 0 is needed")
        self._model, self._fabric, self._most, self._sparse = model, fabric, most_under_way, sparse
        self._feedback = feedback
        self._tickets: list[UpdateTicket] = []
        self._begun: Vector | None = None
        self.version = 0
        self.ends: list[TicketEnd] = []

    def pull(self) -> int:
        """Load the server's model, at least as new as what this worker has committed; return its version."""
        newest = max((end.version or 0 for end in self.ends[-16:]), default=0)
        served = self._fabric.get(at_least=newest)
        load_row(self._model, served.weights)
        self._begun, self.version = row_of(self._model), served.version
        return served.version

    def push(self, *, weight: float = 1.0) -> UpdateTicket:
        """Push what training has changed since ``pull``."""
        if self._begun is None:
            raise InvalidUse("push() before pull(): there is no model to compare with yet")
        change = row_of(self._model) - self._begun
        update: Vector | SparseUpdate | NarrowUpdate = change
        if self._feedback is not None:
            update = self._feedback.compress(change)
        elif self._sparse and change.any():
            update = SparseUpdate.of_vector(change)
        ticket = self._fabric.push(update, self.version, weight=weight, kind="pseudo-gradient")
        self._tickets.append(ticket)
        while len(self._tickets) > self._most:
            self.ends.append(self._tickets.pop(0).wait())
        return ticket

    def finish(self) -> list[TicketEnd]:
        """Wait for all updates; return how each ended."""
        while self._tickets:
            self.ends.append(self._tickets.pop(0).wait())
        return self.ends
