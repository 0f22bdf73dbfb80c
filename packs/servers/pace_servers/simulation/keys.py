"""Placement of tensors and partitions in other systems: their keys, and each key's server."""

import numpy as np

from pace.solver.arrays import IntArray

# MXNet's kvstore_dist.h: arrays above so many elements are split evenly over all servers.
MXNET_BIG_ELEMENTS = 1_000_000


def mxnet_parts(
    sizes: IntArray, element_bytes: IntArray, servers: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the tensor, bytes and server of MXNet's keys (kvstore_dist.h, EncodeDefaultKey).

    A small array is one key on server (key * 9973) mod servers; one above `MXNET_BIG_ELEMENTS` is split
    evenly over all servers.
    """
    tensors: list[int] = []
    parts: list[int] = []
    placed: list[int] = []
    for key, (size, element) in enumerate(zip(sizes.tolist(), element_bytes.tolist(), strict=True)):
        elements = size // element
        if elements < MXNET_BIG_ELEMENTS or servers == 1:
            tensors.append(key)
            parts.append(size)
            placed.append(key * 9973 % servers)
            continue
        for server in range(servers):
            begin, end = (round(elements / servers * at) for at in (server, server + 1))
            tensors.append(key)
            parts.append((end - begin) * element)
            placed.append(server)
    return _arrays(tensors, parts, placed)


def round_robin(count: int, servers: int) -> IntArray:
    """Place one after another, as TensorFlow's replica_device_setter does."""
    return np.arange(count, dtype=np.int64) % servers


def djb2_server(key: int, servers: int) -> int:
    """Return BytePS's server of a key: Bernstein's hash of its decimal digits (global.cc, Hash_DJB2)."""
    found = 5381
    for character in str(key):
        found = (found * 33 + ord(character)) & 0xFFFFFFFFFFFFFFFF
    return found % servers


def byteps_keys(tensor_parts: IntArray, servers: int) -> IntArray:
    """Return the server of every part: key = (tensor << 16) + part, hashed (operations.cc, InitTensor)."""
    seen: dict[int, int] = {}
    placed = np.empty(len(tensor_parts), dtype=np.int64)
    for number, tensor in enumerate(tensor_parts.tolist()):
        part = seen.get(tensor, 0)
        seen[tensor] = part + 1
        placed[number] = djb2_server((tensor << 16) + part, servers)
    return placed


def _arrays(*lists: list[int]) -> tuple[IntArray, IntArray, IntArray]:
    first, second, third = (np.array(each, dtype=np.int64) for each in lists)
    return first, second, third
