"""The receiver of state dicts: a rollout engine's end of weight synchronization."""

import ssl
from collections.abc import Mapping

import torch

from pace.errors import ScheduleMismatch
from pace.runtime.closing import Closing
from pace.runtime.fabric.messages import RelayOrder
from pace.runtime.fabric.weight_sync.receiver import ReceivedWeights, WeightReceiver
from pace.runtime.weight_sync.state_layout import StateLayout, StateTensor, described, read_layout


class StateReceiver(Closing):
    """Receives state dicts: into new tensors, so the old version stays whole until the new one is.

    Each bucket is copied, cast and moved to its device while the next one arrives.

    Parameters
    ----------
    bind
        Where the sender and the host before this one call.
    like
        A state dict with the names and shapes that are expected. Tensors arrive with its types, and on its
        devices. Without it, every state dict is taken, with the sender's types and on the CPU.
    token
        What the sender knows, too.
    """

    def __init__(
        self,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        *,
        like: Mapping[str, torch.Tensor] | None = None,
        token: str | None = None,
        serving: ssl.SSLContext | None = None,
        trusting: ssl.SSLContext | None = None,
    ) -> None:
        self._like = None if like is None else dict(zip(like, described(like), strict=True))
        self._targets = (
            {} if like is None else {name: (each.dtype, each.device) for name, each in like.items()}
        )
        self._receiver = WeightReceiver(
            bind, token=token, serving=serving, trusting=trusting, make_taker=self._take
        )

    @property
    def address(self) -> str:
        """Address at which it listens, as HOST:PORT."""
        return self._receiver.address

    def receive(self, timeout_s: float | None = None) -> ReceivedWeights:
        """Return the next state dict that has arrived whole, as ``data``; what arrives in part never is.

        Raises
        ------
        CommunicationFailed
            When none arrives in time.
        """
        return self._receiver.receive(timeout_s)

    def finish(self, within_s: float = 600.0) -> None:
        """Write what is still to be handed on to other receivers."""
        self._receiver.finish(within_s)

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._receiver.close()

    def _take(self, order: RelayOrder) -> "_StateTaker":
        layout = read_layout(order.layout)
        if self._like is not None:
            _refuse_other(layout.tensors, self._like)
        if layout.sizes != order.sizes:
            raise ScheduleMismatch("the sender's layout and its buckets have other sizes")
        return _StateTaker(layout, self._targets)


def _refuse_other(sent: tuple[StateTensor, ...], expected: Mapping[str, StateTensor]) -> None:
    names = {tensor.name for tensor in sent}
    missing = next((name for name in expected if name not in names), None)
    if missing is not None:
        raise ScheduleMismatch(f'the sender has no tensor "{missing}"')
    for tensor in sent:
        if tensor.name not in expected:
            raise ScheduleMismatch(f'the sender has tensor "{tensor.name}", which is not expected here')
        if tensor.shape != expected[tensor.name].shape:
            raise ScheduleMismatch(
                f'tensor "{tensor.name}" has shape {tensor.shape}, here {expected[tensor.name].shape}'
            )


class _StateTaker:
    """Makes tensors of buckets."""

    def __init__(self, layout: StateLayout, targets: Mapping[str, tuple[torch.dtype, torch.device]]) -> None:
        self.layout_sha256 = layout.sha256
        self._layout = layout
        self._targets = [
            targets.get(each.name, (each.torch_dtype, torch.device("cpu"))) for each in layout.tensors
        ]
        self._left = [tensor.size_bytes for tensor in layout.tensors]
        self._staged: dict[int, torch.Tensor] = {}
        self._done: dict[int, torch.Tensor] = {}

    def take(self, bucket: int, data: bytearray) -> None:
        """Put the bytes of a bucket into their tensors; a tensor that is whole is cast."""
        at = 0
        for number, offset, size in self._layout.buckets[bucket]:
            if number not in self._staged:
                tensor = self._layout.tensors[number]
                self._staged[number] = torch.empty(
                    tensor.shape, dtype=tensor.torch_dtype, device=self._targets[number][1]
                )
            flat = self._staged[number].reshape(-1).view(torch.uint8)
            flat[offset : offset + size].copy_(
                torch.frombuffer(data, dtype=torch.uint8, offset=at, count=size)
            )
            at += size
            self._left[number] -= size
            if not self._left[number]:
                self._done[number] = self._staged.pop(number).to(self._targets[number][0])

    def finish(self) -> dict[str, torch.Tensor]:
        """Return the state dict, in the sender's order."""
        for number, tensor in enumerate(self._layout.tensors):
            if not tensor.size_bytes:
                dtype, device = self._targets[number]
                self._done[number] = torch.empty(tensor.shape, dtype=dtype, device=device)
        return {tensor.name: self._done[number] for number, tensor in enumerate(self._layout.tensors)}
