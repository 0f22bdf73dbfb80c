"""Lower bounds for parameter servers: for the order of given segments, and for all ways to cut gradients.

For given segments, each link is a machine. A segment is a job on the worker's uplink, followed by its pull; a
job on the downlink, preceded by its push; and a job on the links of its server. For all ways to cut: a set of
gradients takes e seconds for each byte on the links, at least one part loses theta seconds, and the last part
returns after a round trip.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pace.documents.proofs import ChainBound, Proof, ProofLink, SetBound
from pace.planning.fusion.bounds import chain_bound
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.one_machine import CriticalSet, one_link_bound
from pace_servers.planning.problem import ServersProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJobs:
    """Segments as jobs: arrays of shape (num_segments,).

    Attributes
    ----------
    ready, tail
        Ready time and tail of each segment's group, in seconds.
    push_bytes, pull_bytes
        Bytes sent in each direction, overhead included.
    server
        The number of each segment's server.
    """

    ready: FloatArray
    tail: FloatArray
    push_bytes: FloatArray
    pull_bytes: FloatArray
    server: IntArray


def segment_proofs(problem: ServersProblem, segments: SegmentJobs) -> tuple[Proof, ...]:
    """Return the set with the greatest bound on each link that segments cross, in O(n log n) for a link."""
    if not len(segments.ready):
        return ()
    links = problem.links
    # The highest rates of a worker's bytes, over all connections and over one.
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
    if not len(jobs):
        none = {"num_transfers": 0, "min_ready_s": 0.0, "total_s": 0.0, "min_tail_s": 0.0, "bound_s": 0.0}
        return Proof(link=link, server=server, **none)
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
    """Bound the window of every fusion, cut, placement and order from below, in O(n log n)."""
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
    """Return the bound from a chain of gradients; None if gradients are sent compressed.

    Every group's last part loses theta seconds and returns after a round trip. So this is the chain bound of
    docs/solver.md with the round trip added to every tail.
    """
    if not problem.is_even:
        return None
    return chain_bound(replace(problem.plain, tail=problem.plain.tail + problem.latency_s))
