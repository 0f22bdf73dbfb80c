"""The buffer with which a worker and the servers exchange a group's weights."""

import math
from collections.abc import Collection

import torch
from torch import nn

from pace.runtime.engine.plan import SendPlan
from pace.runtime.transports.runs import Runs
from pace_servers.runtime.sparse_frames import is_worth_it


class WeightShare:
    """A group's parameters in a flat buffer to send, and the servers' weights as last received.

    Between exchanges, the buffer has the servers' weights.

    Parameters
    ----------
    tables
        Names of the parameters of which a step changes a few rows.
    """

    def __init__(
        self,
        plan: SendPlan,
        number: int,
        parameters: dict[str, nn.Parameter],
        tables: Collection[str] = (),
    ) -> None:
        group = plan.groups[number]
        self._parameters = [parameters[name] for name in group.gradients]
        self._are_tables = [name in tables for name in group.gradients]
        total = sum(parameter.numel() for parameter in self._parameters)
        self._buffer = torch.zeros(total, dtype=self._parameters[0].dtype, device="cpu")
        self._known = torch.zeros_like(self._buffer)
        self._views, self._known_views = self._split(self._buffer), self._split(self._known)
        # First and last element of each segment, by its offset in bytes; and what is sent of it.
        self._parts: dict[int, tuple[int, int]] = {}
        self._runs: dict[int, Runs] = {}

    def _split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]

    def part(self, offset_bytes: int, size_bytes: int) -> torch.Tensor:
        """Return the part of the buffer that a segment sends."""
        element = self._buffer.element_size()
        first, last = offset_bytes // element, (offset_bytes + size_bytes) // element
        self._parts[offset_bytes] = first, last
        return self._buffer[first:last]

    def runs_at(self, offset_bytes: int) -> Runs | None:
        """Return the elements of a segment that the loaded change has; None if it is sent whole."""
        return self._runs.get(offset_bytes)

    @torch.no_grad()
    def load_weights(self) -> None:
        """Fill the buffer with the parameters."""
        self._runs = {}
        for view, parameter in zip(self._views, self._parameters, strict=True):
            view.copy_(parameter)

    def remember(self) -> None:
        """Record the current parameters as the servers' weights."""
        self.load_weights()
        self._known.copy_(self._buffer)

    def load_known(self) -> None:
        """Fill the buffer with the servers' weights as last received."""
        self._runs = {}
        self._buffer.copy_(self._known)

    def load_nothing(self) -> None:
        """Fill the buffer with zeros: no change, to get all weights."""
        self._runs = {}
        self._buffer.zero_()

    def load(self, change: torch.Tensor) -> None:
        """Fill the buffer with a change, to get all weights."""
        self._runs = {}
        self._buffer.copy_(change)

    def change(self, divisor: float) -> torch.Tensor:
        """Return the change since the servers' weights were last received, divided by `divisor`."""
        self.load_weights()
        self._buffer.sub_(self._known)
        if divisor != 1:
            self._buffer.div_(divisor)
        return self._buffer.clone()

    @torch.no_grad()
    def load_change(self, divisor: float) -> None:
        """Put the change since the servers' weights were last received, over `divisor`, into the buffer.

        Of a segment that is sent as runs (``runs_at``), all other elements stay the servers' weights.
        """
        self._runs = {}
        places: list[Runs] = []
        rows: dict[int, torch.Tensor] = {}
        position = 0
        for number, parameter in enumerate(self._parameters):
            view, known = self._views[number], self._known_views[number]
            if self._are_tables[number]:
                changed = parameter.ne(known).flatten(1).any(1).nonzero().squeeze(1)
                rows[number] = changed
                places.append(Runs.of_rows(changed.numpy(), math.prod(view.shape[1:])).shifted(position))
            else:
                torch.sub(parameter, known, out=view)
                if divisor != 1:
                    view.div_(divisor)
                places.append(Runs.whole(position, view.numel()))
            position += view.numel()
        if not rows:
            return
        self._choose_runs(Runs.joined(places))
        for number, changed in rows.items():
            change = self._parameters[number][changed].sub_(self._known_views[number][changed])
            self._views[number][changed] = change.div_(divisor) if divisor != 1 else change

    def _choose_runs(self, changed: Runs) -> None:
        """Decide which segments are sent as runs; of the others, set tables to zero."""
        dtype = str(self._buffer.dtype).removeprefix("torch.")
        for offset, (first, last) in self._parts.items():
            runs = changed.cut(first, last)
            if is_worth_it(runs, (last - first) * self._buffer.element_size(), dtype):
                self._runs[offset] = runs
                continue
            begin = 0
            for is_table, view in zip(self._are_tables, self._views, strict=True):
                end = begin + view.numel()
                if is_table:
                    self._buffer[max(begin, first) : max(min(end, last), max(begin, first))].zero_()
                begin = end

    @torch.no_grad()
    def take_over(self) -> None:
        """Copy the buffer's weights to the model."""
        self._known.copy_(self._buffer)
        for view, parameter in zip(self._views, self._parameters, strict=True):
            parameter.copy_(view)
