"""Hashes of blocks of tensors: what changed from one version to the next, and whether a copy is right."""

import hashlib
from collections.abc import Sequence

import torch

from pace_sync.weight_sync.state_layout import StateTensor, Stretch

Digests = list[bytes]


def block_elements(tensor: StateTensor, block_bytes: int) -> int:
    """Return how many elements a block of a tensor has, by the sender's type."""
    return max(block_bytes // tensor.torch_dtype.itemsize, 1)


def block_digests(tensor: torch.Tensor, elements: int) -> Digests:
    """Return the SHA-256 of each block of so many elements; the last block may be shorter."""
    if not tensor.numel():
        return []
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data: memoryview = whole.view(torch.uint8).cpu().numpy().data
    step = elements * tensor.element_size()
    return [hashlib.sha256(data[at : at + step]).digest() for at in range(0, len(data), step)]


def version_hash(tensors: Sequence[StateTensor], digests: Sequence[Digests]) -> str:
    """Return the hash of a version: of names, types, shapes and all blocks."""
    told = hashlib.sha256()
    for tensor, blocks in zip(tensors, digests, strict=True):
        told.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{len(blocks)}\n".encode())
        for block in blocks:
            told.update(block)
    return told.hexdigest()


def changed_stretches(
    tensors: Sequence[StateTensor], before: Sequence[Digests], now: Sequence[Digests], block_bytes: int
) -> list[Stretch]:
    """Return the stretches of blocks that differ, neighbors joined."""
    found: list[Stretch] = []
    for number, tensor in enumerate(tensors):
        step = block_elements(tensor, block_bytes) * tensor.torch_dtype.itemsize
        for place, (old, new) in enumerate(zip(before[number], now[number], strict=True)):
            if old == new:
                continue
            at = place * step
            size = min(step, tensor.size_bytes - at)
            if found and found[-1][0] == number and found[-1][1] + found[-1][2] == at:
                found[-1] = (number, found[-1][1], found[-1][2] + size)
            else:
                found.append((number, at, size))
    return found


def in_buckets(
    stretches: Sequence[Stretch], tensors: Sequence[StateTensor], block_bytes: int, bucket_bytes: int
) -> tuple[tuple[Stretch, ...], ...]:
    """Return stretches in buckets of at most one size; they are cut after whole blocks only.

    A block that is larger has a bucket of its own.
    """
    buckets: list[list[Stretch]] = []
    room = 0
    for number, begin, size in stretches:
        step = block_elements(tensors[number], block_bytes) * tensors[number].torch_dtype.itemsize
        at, end = begin, begin + size
        while at < end:
            if room < min(step, end - at):
                buckets.append([])
                room = bucket_bytes
            part = min(max(room // step, 1) * step, end - at)
            buckets[-1].append((number, at, part))
            at, room = at + part, room - part
    return tuple(map(tuple, buckets))
