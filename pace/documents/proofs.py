"""What proves the predictions of a schedule: sets of groups, sets of gradients and chains of gradients."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Bytes, Document, Index
from pace.documents.profile import Seconds

# Left out where they are 0: most schedules need none of them.
Extra = Annotated[Seconds, Field(exclude_if=lambda seconds: seconds == 0)]
ProofLink = Literal["network", "up", "down", "server"]


class Proof(Document):
    """A set of transfers whose numbers add up to a bound for these groups and segments.

    No order of the schedule's own transfers ends the window before ``min_ready_s + total_s + norm_s +
    min_tail_s + stretch_s``.

    Attributes
    ----------
    link
        Link that carries the set: "network", or with servers a worker's whole link "up" or "down", or the
        link of one "server".
    server
        Number of the server, for link "server".
    set
        Numbers of the groups, each sent in one transfer, or in the schedule's segments if these take less
        time, as they may if the cost jumps. In a sharded schedule without a norm, an
        all-gather's ready time is the latest end of what it needs if nothing else were sent, and a
        reduce-scatter's tail the longest of an all-gather that needs it with what follows that all-gather.
    num_transfers
        With servers: how many transfers of the link qualify, those with a ready time of at least
        `min_ready_s` and a tail of at least `min_tail_s`; `set` is empty. On "up" and "server" a transfer's
        tail is its group's, the round trip and its own pull. On "down" its ready time is its group's, its own
        push and the round trip. Where servers share the workers' hosts, "up" carries pushes and pulls, and
        tails are the groups'.
    norm_s
        Duration of the exchange of a global norm between the set's reduce-scatters and all-gathers.
    stretch_s
        How much longer compute takes because of all other transfers, which must overlap with it:
        (1 - 1 / compute_slowdown) of their time.
    """

    link: ProofLink = "network"
    server: Annotated[int | None, Field(ge=0, exclude_if=lambda server: server is None)] = None
    set: tuple[Index, ...] = ()
    num_transfers: Annotated[int | None, Field(ge=0, exclude_if=lambda count: count is None)] = None
    min_ready_s: Seconds
    total_s: Seconds
    norm_s: Extra = 0.0
    min_tail_s: Seconds
    stretch_s: Extra = 0.0
    bound_s: Seconds


class SetBound(Document):
    """A set of gradients that proves lower_bound_s against every fusion, segmentation and order.

    All gradients that are ready no earlier than min_ready_s and have a tail no shorter than min_tail_s:
    whatever carries their bytes is sent after min_ready_s, in at least one call, at no less than
    latency_s + bytes * seconds_per_byte.

    Attributes
    ----------
    link
        "network", or with servers the direction, "up" or "down".
    extra_s
        By how much the first of the calls takes longer, or starts later, because compute runs.
    total_bytes
        Bytes of the set that are sent; with servers, after compression.
    round_trip_s
        With servers: shortest time from sending the last byte until it is back.
    stretch_s
        How much longer compute takes because of the bytes of all other gradients: (1 - 1 / compute_slowdown)
        times their seconds_per_byte.
    """

    link: Literal["network", "up", "down"] = "network"
    min_ready_s: Seconds
    min_tail_s: Seconds
    num_gradients: Index
    total_bytes: Bytes | Annotated[float, Field(ge=0, allow_inf_nan=False)]
    latency_s: Seconds
    extra_s: Extra = 0.0
    round_trip_s: Extra = 0.0
    seconds_per_byte: Seconds
    stretch_s: Extra = 0.0
    bound_s: Seconds


class ChainBound(Document):
    """A chain of gradients that proves lower_bound_s against every fusion.

    All gradients with bytes, in order of ready time with every tail lowered to the least of those that
    follow ("ready"), or in order of tail with every ready time lowered likewise ("tail"). On such a chain
    a group's ready time and tail are those of its last gradient, so no fusion is faster than the best
    one into contiguous groups, each call priced at latency_s + bytes * seconds_per_byte. Ready times contain
    what one call takes longer while compute runs (``pace.planning.fusion.bounds.later``). Where traffic slows
    compute, that holds on the compute clock (``pace.solver.compute_clock``), and bound_s contains what one
    latency and all bytes stretch compute by.
    """

    order: Literal["ready", "tail"]
    latency_s: Seconds
    seconds_per_byte: Seconds
    bound_s: Seconds


class NormBound(Document):
    """What proves lower_bound_s against every sharded schedule with a norm: the sum of three parts.

    No calls sum all gradients before the first chain's bound, in order of ready time and with tails of 0;
    the norm follows; after it no calls gather them all, and compute what waits for them, within the second
    chain's bound, in order of tail and with ready times of 0.
    """

    reduce_scatter: ChainBound
    norm_s: Seconds
    all_gather: ChainBound
    bound_s: Seconds
