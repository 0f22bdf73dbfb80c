"""What a schedule of a graph says beside its groups and transfers: the order of nodes, and bounds."""

from typing import Annotated

from pydantic import Field

from pace.documents.base import Bytes, Document, Index
from pace.documents.profile import DType, Name, Seconds
from pace.errors import InvalidSchedule


class KeyLine(Document):
    """A line below the cost of every collective that may share a bucket."""

    refused_as = InvalidSchedule

    op: Name
    communicator: Name
    dtype: DType | None = None
    latency_s: Seconds
    seconds_per_byte: Seconds


class SetOfNodes(Document):
    """A set of ops, or of one wire's collectives, that proves a bound: the sum of four times.

    The set has all nodes of the wire, or of the compute stream, with a head of at least `min_head_s` and a
    tail of at least `min_tail_s`. Heads and tails are those of ``pace.solver.graph.heads``.

    Attributes
    ----------
    wire
        Name of the wire; null for the compute stream.
    total_s
        Time of the set: durations of ops, or input bytes times the seconds per byte of `lines`.
    latency_s
        Smallest latency of `lines`, counted once.
    """

    refused_as = InvalidSchedule

    wire: Name | None = None
    min_head_s: Seconds
    total_s: Seconds
    latency_s: Seconds = 0.0
    min_tail_s: Seconds
    num_nodes: Index
    lines: tuple[KeyLine, ...] = ()
    bound_s: Seconds


class LateCollective(Document):
    """A collective that proves a bound: what could hide it has collectives of its own on its wire.

    ``bound_s = compute_s + latency_s + own_s - hidden_s``; the theorem is in
    ``pace.solver.graph.last_collective``.

    Attributes
    ----------
    hidden_s
        Ops that it does not need and that no collective of its wire needs, and of those that share a first
        collective of its wire, what they take longer than it. If memory has a price, ops count less, and
        ``held_s_per_byte * room_bytes`` is added.
    held_s_per_byte
        Price of the memory that is in use when `full_at` runs, because ops run behind the collective. 0 for a
        bound with any amount of memory.
    full_at
        The collective or an op that it needs; null without a price.
    room_bytes
        Bytes of the budget that are not in use in every plan at that time.
    """

    refused_as = InvalidSchedule

    collective: Name
    compute_s: Seconds
    latency_s: Seconds
    own_s: Seconds
    hidden_s: Seconds
    held_s_per_byte: Annotated[Seconds, Field(exclude_if=lambda price: not price)] = 0.0
    full_at: Annotated[Name | None, Field(exclude_if=lambda name: name is None)] = None
    room_bytes: Annotated[Bytes, Field(exclude_if=lambda room: not room)] = 0
    lines: tuple[KeyLine, ...]
    bound_s: Seconds


class EnumeratedPlans(Document):
    """The comparison of all plans of a small graph, all orders and all buckets.

    Attributes
    ----------
    num_states
        Number of states that were compared: the same nodes had run, at different times.
    bound_s
        No plan within the budget ends earlier, in seconds.
    """

    refused_as = InvalidSchedule

    num_states: Index
    bound_s: Seconds


class GraphPlan(Document):
    """The order of a graph's nodes, and what proves the bound.

    Attributes
    ----------
    order
        Numbers of all nodes in their planned order. Members of a bucket follow one another, and so do their
        waits.
    budget_bytes
        Memory budget in bytes; null for no limit.
    longest_path_s
        Length of the longest path: the largest sum of a node's head, shortest time and tail.
    stretch_s
        Seconds to add to the other bounds, whose collectives are `compute_slowdown` times as fast. 0 if the
        bounds ignore that compute is slower beside collectives.
    enumerated
        Null if the graph is too large to compare all plans.
    """

    refused_as = InvalidSchedule

    order: tuple[Index, ...]
    budget_bytes: Bytes | None = None
    sets: tuple[SetOfNodes, ...]
    late: Annotated[LateCollective | None, Field(exclude_if=lambda late: late is None)] = None
    longest_path_s: Seconds
    stretch_s: Annotated[Seconds, Field(exclude_if=lambda seconds: not seconds)] = 0.0
    enumerated: Annotated[EnumeratedPlans | None, Field(exclude_if=lambda plans: plans is None)] = None
