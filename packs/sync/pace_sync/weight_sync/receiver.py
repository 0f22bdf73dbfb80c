"""The receiver of state dicts: a rollout engine's end of weight synchronization."""

import ssl
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate

import torch

from pace.errors import InvalidUse, ScheduleMismatch
from pace.runtime.closing import Closing
from pace_fabric.runtime.formats.number_formats import Data
from pace_fabric.runtime.messages import RelayOrder
from pace_fabric.runtime.weight_sync.buckets import BucketTaker, WholeWanted
from pace_fabric.runtime.weight_sync.receiver import ReceivedWeights, WeightReceiver
from pace_sync.weight_sync.assembly import StateAssembly
from pace_sync.weight_sync.block_hashes import Digests, block_digests, block_elements
from pace_sync.weight_sync.deltas import DeltaTaker, HeldVersion, refuse_other_base
from pace_sync.weight_sync.local_shards import LocalShard, local_shards
from pace_sync.weight_sync.state_layout import StateLayout, read_layout


class StateReceiver(Closing):
    """Receives state dicts: into new tensors, so the old version stays whole until the new one is.

    What arrives is hashed, copied and moved to its device while the rest arrives. The last version of a
    sender of deltas is kept: the next delta changes a copy of it.

    Parameters
    ----------
    bind
        Where senders and the host before this one call.
    like
        A state dict with the names and shapes that are expected. Tensors arrive with its types, and on its
        devices. Of a DTensor its shard arrives. Without it, every state dict of one sender is taken, with
        the sender's types and on the CPU.
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
        self._expected = None if like is None else local_shards(like)
        self._lock = threading.Lock()
        self._parts: StateAssembly | None = None
        self._held: HeldVersion | None = None
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

    def _take(self, order: RelayOrder) -> BucketTaker:
        layout = read_layout(order.layout)
        if layout.sizes != order.sizes:
            raise ScheduleMismatch("the sender's layout and its buckets have different sizes")
        if layout.base is not None:
            if self._expected is not None and any(each.mesh is not None for each in self._expected.values()):
                raise WholeWanted("shards are received here, and deltas are of whole tensors")
            held = refuse_other_base(self._held, layout)
            return DeltaTaker(layout, held, order.version, self._keep)
        if layout.plan_sha256 is not None:
            return _StateTaker(order, layout, self._assembly(order, layout), self._keep)
        expected = self._expected
        if expected is None:
            expected = _all_of(layout)
        else:
            names = {tensor.name for tensor in layout.tensors}
            missing = next((name for name in expected if name not in names), None)
            if missing is not None:
                raise ScheduleMismatch(f'the sender has no tensor "{missing}"')
        return _StateTaker(order, layout, StateAssembly(expected, order.version, None), self._keep)

    def _keep(self, held: HeldVersion | None) -> None:
        """Keep the version that the next delta may change, and no older one."""
        self._held = held

    def _assembly(self, order: RelayOrder, layout: StateLayout) -> StateAssembly:
        """Return the version that a part belongs to; the parts of a new one begin a new one."""
        if self._expected is None:
            raise InvalidUse("parts of several senders arrive: make the receiver with like=")
        with self._lock:
            parts = self._parts
            if parts is None or parts.version != order.version or parts.is_over:
                parts = self._parts = StateAssembly(self._expected, order.version, layout.plan_sha256)
            elif parts.plan_sha256 != layout.plan_sha256:
                raise ScheduleMismatch(
                    f'sender "{layout.sender}" follows another plan than those before it: '
                    "give all of them the same reshard plan"
                )
            return parts


def _all_of(layout: StateLayout) -> dict[str, LocalShard]:
    """Return all tensors of a sender, whole, as what is expected."""
    cpu = torch.device("cpu")
    return {
        tensor.name: LocalShard(
            begin=(0,) * len(tensor.shape),
            shape=tensor.shape,
            whole=tensor.shape,
            dtype=tensor.torch_dtype,
            device=cpu,
        )
        for tensor in layout.tensors
    }


class _StateTaker:
    """Makes tensors of the buckets of one order."""

    def __init__(
        self,
        order: RelayOrder,
        layout: StateLayout,
        assembly: StateAssembly,
        keep: Callable[[HeldVersion | None], None],
    ) -> None:
        assembly.claim(order.key, layout.sender, layout.tensors)
        self.layout_sha256 = layout.sha256
        self.sender = layout.sender
        self.whole = None if layout.plan_sha256 is None else assembly
        self._key, self._version = order.key, order.version
        self._layout = layout
        self._assembly = assembly
        self._keep = keep
        self._starts = [list(accumulate((part[2] for part in each), initial=0)) for each in layout.buckets]
        self._left = [tensor.size_bytes for tensor in layout.tensors]
        self._staged: dict[int, torch.Tensor] = {}
        # Of the tensors as they are here: what the base of the next delta must still have.
        self._digests: dict[str, Digests] = {}
        self._finished: HeldVersion | None = None

    def take(self, bucket: int, data: Data, begin: int, end: int) -> None:
        """Put bytes of a bucket into their tensors; what is whole is cast and put in its place."""
        stretches, starts = self._layout.buckets[bucket], self._starts[bucket]
        place = bisect_right(starts, begin) - 1
        while begin < end:
            number, offset, size = stretches[place]
            until = min(end, starts[place] + size)
            tensor = self._layout.tensors[number]
            if number not in self._staged:
                self._staged[number] = torch.empty(
                    tensor.shape, dtype=tensor.torch_dtype, device=self._assembly.device(tensor.name)
                )
            flat = self._staged[number].reshape(-1).view(torch.uint8)
            first, count = offset + begin - starts[place], until - begin
            flat[first : first + count].copy_(
                torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=count)
            )
            self._left[number] -= count
            if not self._left[number]:
                self._assembly.put(self._key, tensor, self._staged.pop(number))
                if self._layout.block_bytes is not None:
                    elements = block_elements(tensor, self._layout.block_bytes)
                    self._digests[tensor.name] = block_digests(self._assembly.made(tensor.name), elements)
            begin, place = until, place + 1

    def finish(self) -> dict[str, torch.Tensor] | None:
        """Return the state dict; None while parts of other senders are missing."""
        data = self._assembly.result()
        self._finished = None if data is None else self._held_now(data)
        return data

    def keep(self) -> None:
        """Let the next delta change this version, if one can follow."""
        self._keep(self._finished)

    def _held_now(self, data: dict[str, torch.Tensor]) -> HeldVersion | None:
        layout = self._layout
        if layout.version_sha256 is None or layout.block_bytes is None or self._assembly.is_sharded:
            return None
        return HeldVersion(
            version=self._version,
            sha256=layout.version_sha256,
            block_bytes=layout.block_bytes,
            tensors=layout.tensors,
            data=dict(data),
            digests={name: self._digests.get(name, []) for name in data},
        )

    def drop(self) -> None:
        """Forget what this order brought."""
        self._assembly.release(self._key)
        self._staged.clear()
