"""What no order of pushes and pulls beats: of given segments link by link, and of gradients whatever is cut.

Segments are jobs on a worker's uplink with their own pull behind them, on its downlink with their own push
before them, and on the links of the server that they are placed on. Gradients against every partition:
their bytes cross the links at e seconds each, at least one part loses theta, and the last of them is back
after a round trip.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pace.documents.proofs import ChainBound, Proof, ProofLink, SetBound
from pace.planning.fusion.bounds import chain_bound
from pace.planning.servers.problem import ServersProblem
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.certificate import CriticalSet, one_link_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJobs:
    """Segments as jobs: arrays of shape (num_segments,).

    Attributes
    ----------
    ready, tail
        Of their groups, in seconds.
    push_bytes, pull_bytes
        What travels, overhead included.
    server
        The number of each segment's server.
    """

    ready: FloatArray
    tail: FloatArray
    push_bytes: FloatArray
    pull_bytes: FloatArray
    server: IntArray


def segment_proofs(problem: ServersProblem, segments: SegmentJobs) -> tuple[Proof, ...]:
    """Return the strongest set on every link that the segments cross, in O(n log n) a link."""
    if not len(segments.ready):
        return ()
    links = problem.links
    # The fastest that a worker's bytes go in all, and over one connection.
    directions = 2 if links.shared else 1
    whole = min(links.bytes_per_s, directions * links.num_servers * links.connection_bytes_per_s)
    alone = min(links.bytes_per_s, links.connection_bytes_per_s)
    push, pull = segments.push_bytes, segments.pull_bytes
    if links.shared:
        both = (push + pull) / whole
        return (_proof(segments, segments.ready, both, segments.tail, link="up"),)
    behind = segments.tail + links.latency_s + pull / alone
    before = segments.ready + push / alone + links.latency_s
    found = [
        _proof(segments, segments.ready, push / whole, behind, link="up"),
        _proof(segments, before, pull / whole, segments.tail, link="down"),
    ]
    for server in range(links.num_servers):
        found.append(_proof(segments, segments.ready, push / alone, behind, link="server", server=server))
    return tuple(found)


def _proof(
    segments: SegmentJobs,
    ready: FloatArray,
    duration: FloatArray,
    tail: FloatArray,
    *,
    link: ProofLink,
    server: int | None = None,
) -> Proof:
    jobs = np.arange(len(ready)) if server is None else np.flatnonzero(segments.server == server)
    found: CriticalSet = one_link_bound(ready[jobs], duration[jobs], tail[jobs])
    inside = jobs[(ready[jobs] >= found.min_ready) & (tail[jobs] >= found.min_tail)]
    total = float(duration[inside].sum())
    return Proof(
        link=link,
        server=server,
        num_transfers=len(inside),
        min_ready_s=found.min_ready,
        total_s=total,
        min_tail_s=found.min_tail,
        bound_s=found.min_ready + total + found.min_tail if len(inside) else 0.0,
    )


def servers_bound(problem: ServersProblem) -> SetBound:
    """Bound the window of every fusion, partition, placement and order from below. O(n log n)."""
    plain = problem.plain
    directions: tuple[tuple[Literal["up", "down"], FloatArray, float], ...] = (
        (("up", problem.push_bytes + problem.pull_bytes, problem.seconds_per_byte / 2),)
        if problem.links.shared
        else (
            ("up", problem.push_bytes, problem.seconds_per_byte),
            ("down", problem.pull_bytes, problem.seconds_per_byte),
        )
    )
    sent = np.flatnonzero(plain.sizes)
    best: SetBound | None = None
    for link, travelling, per_byte in directions:
        found = one_link_bound(plain.ready[sent], travelling[sent] * per_byte, plain.tail[sent])
        inside = sent[(plain.ready[sent] >= found.min_ready) & (plain.tail[sent] >= found.min_tail)]
        total = float(travelling[inside].sum())
        lost = problem.lost_s if len(inside) else 0.0
        latency = problem.latency_s if len(inside) else 0.0
        value = found.min_ready + lost + total * per_byte + latency + found.min_tail
        if best is None or value > best.bound_s:
            best = SetBound(
                link=link,
                min_ready_s=found.min_ready,
                min_tail_s=found.min_tail,
                num_gradients=len(inside),
                total_bytes=total,
                latency_s=lost,
                round_trip_s=latency,
                seconds_per_byte=per_byte,
                bound_s=value,
            )
    assert best is not None
    return best


def servers_chain_bound(problem: ServersProblem) -> ChainBound | None:
    """Return the bound by a chain of gradients, where every gradient travels as it is; None elsewhere.

    Every group's last part loses theta and comes back a round trip later: the chain bound of docs/solver.md
    with the round trip in every tail.
    """
    if not problem.is_even:
        return None
    return chain_bound(replace(problem.plain, tail=problem.plain.tail + problem.latency_s))
