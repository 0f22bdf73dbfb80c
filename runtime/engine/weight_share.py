"""A group's weights on their way between a worker and the servers."""

import torch
from torch import nn

from pace.runtime.engine.plan import SendPlan


class WeightShare:
    """A group's parameters, flat: what is sent, and what the servers' weights were when they came last."""

    def __init__(self, plan: SendPlan, number: int, parameters: dict[str, nn.Parameter]) -> None:
        group = plan.groups[number]
        self._parameters = [parameters[name] for name in group.gradients]
        total = sum(parameter.numel() for parameter in self._parameters)
        self._buffer = torch.zeros(total, dtype=self._parameters[0].dtype, device="cpu")
        self._known = torch.zeros_like(self._buffer)
        sizes = [parameter.numel() for parameter in self._parameters]
        flats = torch.split(self._buffer, sizes)
        self._views = [
            flat.view(parameter.shape) for flat, parameter in zip(flats, self._parameters, strict=True)
        ]

    def part(self, offset_bytes: int, size_bytes: int) -> torch.Tensor:
        """Return the part of the buffer that a segment sends."""
        element = self._buffer.element_size()
        return self._buffer[offset_bytes // element : (offset_bytes + size_bytes) // element]

    @torch.no_grad()
    def load_weights(self) -> None:
        """Fill the buffer with the parameters."""
        for view, parameter in zip(self._views, self._parameters, strict=True):
            view.copy_(parameter)

    def remember(self) -> None:
        """Take the parameters as they are for the servers'."""
        self.load_weights()
        self._known.copy_(self._buffer)

    def load_known(self) -> None:
        """Fill the buffer with the servers' weights as they came last."""
        self._buffer.copy_(self._known)

    def load_nothing(self) -> None:
        """Fill the buffer with no change."""
        self._buffer.zero_()

    def load(self, change: torch.Tensor) -> None:
        """Fill the buffer."""
        self._buffer.copy_(change)

    def change(self, divisor: float) -> torch.Tensor:
        """Return a copy of what has changed since the servers' weights came last."""
        self.load_change(divisor)
        return self._buffer.clone()

    def load_change(self, divisor: float) -> None:
        """Fill the buffer with what has changed since the servers' weights came last."""
        self.load_weights()
        self._buffer.sub_(self._known)
        if divisor != 1:
            self._buffer.div_(divisor)

    @torch.no_grad()
    def take_over(self) -> None:
        """Make the buffer's weights the model's."""
        self._known.copy_(self._buffer)
        for view, parameter in zip(self._views, self._parameters, strict=True):
            parameter.copy_(view)
