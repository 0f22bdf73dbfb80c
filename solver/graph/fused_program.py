"""A program in which one node stands for each bucket, as the arrays that list scheduling takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import BoolArray, FloatArray, IntArray
from pace.solver.graph.adjacency import Adjacency
from pace.solver.graph.program import COLLECTIVE, Bucket, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedProgram:
    """A program in which each bucket is one node, and so are the waits of its members.

    A storage has the number of the node of `program` that allocates it. Each bucket adds one more storage,
    for its buffers.

    Attributes
    ----------
    program
        The program before fusion.
    members
        The nodes of `program` that each node stands for.
    place
        The node that stands for each node of `program`.
    seconds
        Time of each op and copy on the compute stream.
    transfer
        Time of each collective or bucket on its wire, in seconds.
    nexts
        The nodes that depend on each node.
    uses, fresh
        The storages that each node uses, and those that it allocates.
    num_uses
        How many nodes use each storage.
    """

    program: Program
    members: Adjacency
    place: IntArray
    kind: IntArray
    seconds: FloatArray
    transfer: FloatArray
    wire: IntArray
    deps: Adjacency
    nexts: Adjacency
    uses: Adjacency
    fresh: Adjacency
    storage_bytes: IntArray
    num_uses: IntArray
    kept: BoolArray

    def spread(self, order: IntArray) -> IntArray:
        """Return the order of the nodes of `program` that follows from an order of these nodes."""
        lengths = np.diff(self.members.starts)[order]
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        nodes: IntArray = self.members.flat[np.repeat(self.members.starts[order], lengths) + offsets]
        return nodes


def fuse(program: Program, buckets: Sequence[Bucket]) -> FusedProgram:
    """Replace the members of each bucket by one node, and their waits by another."""
    n = len(program)
    waits = program.wait_of
    leader = np.arange(n)
    bucket_of = np.full(n, -1)
    for number, bucket in enumerate(buckets):
        members = np.array(bucket)
        leader[members] = members.min()
        leader[waits[members]] = waits[members].min()
        bucket_of[members] = number
    leaders = np.flatnonzero(leader == np.arange(n))
    place = np.full(n, -1)
    place[leaders] = np.arange(len(leaders))
    place = place[leader]
    kind = program.kind[leaders]
    seconds = program.duration[leaders].copy()
    transfer = np.zeros(len(leaders))
    transfer[place] = program.alone_s
    for bucket in buckets:
        issue, wait = place[bucket[0]], place[waits[bucket[0]]]
        transfer[issue] = program.transfer_s(bucket)
        seconds[issue] = program.copy_in_s(bucket)
        seconds[wait] = program.copy_out_s(bucket)

    readers = np.repeat(np.arange(n), np.diff(program.deps.starts))
    sources = program.deps.flat
    deps = _unique(place[readers], place[sources], len(leaders))
    # A single collective uses its input until its wait. A bucket uses it only until it is copied.
    held = (program.kind[readers] == COLLECTIVE) & (bucket_of[readers] < 0)
    users = np.concatenate((place[readers], place[waits[readers[held]]]))
    used = np.concatenate((program.storage[sources], program.storage[sources[held]]))
    buffers = n + np.arange(len(buckets))
    first = np.array([bucket[0] for bucket in buckets], dtype=np.int64)
    users = np.concatenate((users, place[waits[first]])) if len(first) else users
    used = np.concatenate((used, buffers)) if len(first) else used
    sizes = [int((program.input_bytes + program.output_bytes)[list(bucket)].sum()) for bucket in buckets]
    storage_bytes = np.concatenate((program.size_bytes, np.array(sizes, dtype=np.int64)))
    allocating = np.flatnonzero(program.size_bytes > 0)
    at = np.where(bucket_of[allocating] >= 0, place[waits[allocating]], place[allocating])
    fresh = _unique(np.concatenate((at, place[first])), np.concatenate((allocating, buffers)), len(leaders))
    uses = _unique(users, used, len(leaders))
    order = np.argsort(leader, kind="stable")
    bounds = np.append(np.searchsorted(leader[order], leaders), n)
    return FusedProgram(
        program=program,
        members=Adjacency(starts=bounds, flat=order),
        place=place,
        kind=kind,
        seconds=seconds,
        transfer=transfer,
        wire=program.wire[leaders],
        deps=deps,
        nexts=deps.reversed(len(leaders)),
        uses=uses,
        fresh=fresh,
        storage_bytes=storage_bytes,
        num_uses=np.bincount(uses.flat, minlength=len(storage_bytes)),
        kept=np.concatenate((program.kept, np.zeros(len(buckets), dtype=np.bool_))),
    )


def _unique(nodes: IntArray, items: IntArray, num_nodes: int) -> Adjacency:
    """Return the different items of each node, without the node itself."""
    span = int(items.max(initial=0)) + 1
    pairs = np.sort(nodes * span + items)
    pairs = pairs[np.concatenate((np.ones(min(1, len(pairs)), dtype=np.bool_), pairs[1:] != pairs[:-1]))]
    owners, flat = pairs // span, pairs % span
    starts = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=num_nodes), out=starts[1:])
    return Adjacency(starts=starts, flat=flat)
