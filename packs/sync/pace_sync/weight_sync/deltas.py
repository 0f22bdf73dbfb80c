"""Deltas at both ends: the sender's last version by its hashes, the receiver's by its tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pace_fabric.runtime.formats.number_formats import Data
from pace_fabric.runtime.weight_sync.buckets import WholeWanted
from pace_sync.weight_sync.block_hashes import (
    Digests,
    block_digests,
    block_elements,
    changed_stretches,
    in_buckets,
)
from pace_sync.weight_sync.state_layout import (
    DEFAULT_BUCKET_BYTES,
    DeltaBase,
    StateLayout,
    StateTensor,
)

# About 10 MB of text; a message has at most 16 MiB.
_MOST_STRETCHES = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SentVersion:
    """What the sender remembers of the last version: no weights, only their hashes."""

    base: DeltaBase
    tensors: tuple[StateTensor, ...]
    digests: tuple[Digests, ...]


def delta_layout(
    before: SentVersion,
    now: SentVersion,
    block_bytes: int,
    most_bytes: int,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> StateLayout | None:
    """Return what a delta from one version to another carries; None if whole weights are to be sent.

    That is where tensors are others, more than `most_bytes` changed, what changed is in too many places to be
    told in a message, or a block does not fit a bucket.
    """
    if before.tensors != now.tensors:
        return None
    stretches = changed_stretches(now.tensors, before.digests, now.digests, block_bytes)
    if sum(size for _, _, size in stretches) > most_bytes or len(stretches) > _MOST_STRETCHES:
        return None
    buckets = in_buckets(stretches, now.tensors, block_bytes, bucket_bytes)
    if any(sum(size for _, _, size in bucket) > bucket_bytes for bucket in buckets):
        return None
    return StateLayout(
        base=before.base,
        version_sha256=now.base.sha256,
        block_bytes=block_bytes,
        tensors=now.tensors,
        buckets=buckets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersion:
    """A version at a receiver, as it was given away, and the hashes of its blocks in its own types."""

    version: int
    sha256: str
    block_bytes: int
    tensors: tuple[StateTensor, ...]
    data: dict[str, torch.Tensor]
    digests: dict[str, Digests]


def refuse_other_base(held: HeldVersion | None, layout: StateLayout) -> HeldVersion:
    """Return the version that a delta changes; raises WholeWanted if it is not here."""
    assert layout.base is not None
    if held is not None and (held.sha256, held.tensors) == (layout.base.sha256, layout.tensors):
        return held
    here = "no version with deltas" if held is None else f"version {held.version}"
    raise WholeWanted(
        f"the delta is from version {layout.base.version}, and here is {here}: whole weights are needed"
    )


class DeltaTaker:
    """Makes the next version of the one before and the blocks that changed.

    The version before is copied, and its copy is checked against the hashes that it had when it arrived:
    whoever got those tensors may have changed them.

    Parameters
    ----------
    keep
        Called with the new version when it is whole.
    """

    def __init__(
        self, layout: StateLayout, held: HeldVersion, version: int, keep: Callable[[HeldVersion], None]
    ) -> None:
        self.layout_sha256 = layout.sha256
        self.sender = layout.sender
        self.whole: object | None = None
        self._layout = layout
        self._held = held
        self._version = version
        self._keep = keep
        self._made: dict[str, torch.Tensor] = {}
        self._finished: HeldVersion | None = None
        self._changed: dict[str, list[tuple[int, int]]] = {}

    def take(self, bucket: int, data: Data, _begin: int, end: int) -> None:
        """Put a bucket that is whole into the copies; the first bytes start the copies."""
        made = self._copy_base()
        if end < len(data):
            return
        at = 0
        for number, offset, size in self._layout.buckets[bucket]:
            tensor = self._layout.tensors[number]
            dtype = tensor.torch_dtype
            source = torch.frombuffer(data, dtype=torch.uint8, offset=at, count=size).clone().view(dtype)
            first, count = offset // dtype.itemsize, size // dtype.itemsize
            made[tensor.name].reshape(-1)[first : first + count].copy_(source)
            self._changed.setdefault(tensor.name, []).append((first, count))
            at += size

    def finish(self) -> dict[str, torch.Tensor]:
        """Return the new version, in the order of the one before."""
        made = self._copy_base()
        digests = dict(self._held.digests)
        for tensor in self._layout.tensors:
            if tensor.name not in self._changed:
                continue
            elements = block_elements(tensor, self._held.block_bytes)
            flat = made[tensor.name].reshape(-1)
            fresh = list(digests[tensor.name])
            for first, count in self._changed[tensor.name]:
                place = first // elements
                blocks = block_digests(flat[first : first + count], elements)
                fresh[place : place + len(blocks)] = blocks
            digests[tensor.name] = fresh
        assert self._layout.version_sha256 is not None
        self._finished = HeldVersion(
            version=self._version,
            sha256=self._layout.version_sha256,
            block_bytes=self._held.block_bytes,
            tensors=self._held.tensors,
            data=made,
            digests=digests,
        )
        return dict(made)

    def keep(self) -> None:
        """Let the next delta change this version."""
        assert self._finished is not None
        self._keep(self._finished)

    def drop(self) -> None:
        """Forget the copies."""
        self._made = {}

    def _copy_base(self) -> dict[str, torch.Tensor]:
        if self._made:
            return self._made
        made = {}
        sent = {tensor.name: tensor for tensor in self._layout.tensors}
        for name, tensor in self._held.data.items():
            made[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
            elements = block_elements(sent[name], self._held.block_bytes)
            if block_digests(made[name], elements) != self._held.digests[name]:
                raise WholeWanted(
                    f'tensor "{name}" of version {self._held.version} was changed here after it arrived: '
                    "whole weights are needed"
                )
        self._made = made
        return made


def digests_of(
    tensors: Sequence[StateTensor], state: Sequence[torch.Tensor], block_bytes: int
) -> tuple[Digests, ...]:
    """Return the hashes of all blocks of a state dict."""
    return tuple(
        block_digests(each, block_elements(tensor, block_bytes))
        for tensor, each in zip(tensors, state, strict=True)
    )
