"""The buffer with which a worker and the servers exchange a group's weights."""

import torch
from torch import nn

from pace.runtime.engine.plan import SendPlan


class WeightShare:
    """A group's parameters in a flat buffer to send, and the servers' weights as last received."""

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
        """Record the current parameters as the servers' weights."""
        self.load_weights()
        self._known.copy_(self._buffer)

    def load_known(self) -> None:
        """Fill the buffer with the servers' weights as last received."""
        self._buffer.copy_(self._known)

    def load_nothing(self) -> None:
        """Fill the buffer with zeros: no change."""
        self._buffer.zero_()

    def load(self, change: torch.Tensor) -> None:
        """Fill the buffer with a change."""
        self._buffer.copy_(change)

    def change(self, divisor: float) -> torch.Tensor:
        """Return the change since the servers' weights were last received, divided by `divisor`."""
        self.load_change(divisor)
        return self._buffer.clone()

    def load_change(self, divisor: float) -> None:
        """Fill the buffer with the change since the servers' weights were last received, over `divisor`."""
        self.load_weights()
        self._buffer.sub_(self._known)
        if divisor != 1:
            self._buffer.div_(divisor)

    @torch.no_grad()
    def take_over(self) -> None:
        """Copy the buffer's weights to the model."""
        self._known.copy_(self._buffer)
        for view, parameter in zip(self._views, self._parameters, strict=True):
            parameter.copy_(view)
