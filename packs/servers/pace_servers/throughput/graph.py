"""A steps document as arrays, for the simulation; made once for each document."""

from dataclasses import dataclass

import numpy as np

from pace.documents.steps import StepsDocument
from pace.errors import InvalidOptions
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.least_bytes import least_bytes_servers
from pace_servers.throughput.kernels.arrays import DOWNLINK, PS, UPLINK, WORKER, OpArrays

KIND_OF = {"downlink": DOWNLINK, "worker": WORKER, "uplink": UPLINK, "ps": PS}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepGraph:
    """The ops of a step and the times of the recorded steps.

    Attributes
    ----------
    ops
        The graph, with the queue of each op.
    duration_s : array of shape (num_steps, num_ops)
        Durations of compute ops in seconds; 0 for transfers.
    roots : integer array of shape (num_steps, num_roots)
        Ops that wait for no other op, by recorded start, then by number.
    """

    ops: OpArrays
    duration_s: FloatArray
    roots: IntArray

    @classmethod
    def of(cls, document: StepsDocument) -> "StepGraph":
        """Build from a document, in O(steps * ops + dependencies)."""
        servers = document.servers
        kind = np.array([KIND_OF[op.resource] for op in document.ops], dtype=np.int64)
        server = np.array([op.server or 0 for op in document.ops], dtype=np.int64)
        queue = np.full(len(kind), -1, dtype=np.int64)
        queue[kind == DOWNLINK] = server[kind == DOWNLINK]
        queue[kind == UPLINK] = servers + server[kind == UPLINK]
        streams: dict[tuple[int, int, str], int] = {}
        for number, op in enumerate(document.ops):
            if op.stream is not None:
                place = (int(kind[number]), int(server[number]), op.stream)
                queue[number] = streams.setdefault(place, 2 * servers + len(streams))
        in_queue = np.bincount(queue[queue >= 0], minlength=2 * servers + len(streams))
        after: list[list[int]] = [[] for _ in document.ops]
        for number, before in enumerate(document.dependencies):
            for previous in before:
                after[previous].append(number)
        counts = np.array([len(before) for before in document.dependencies], dtype=np.int64)
        duration = np.array([step.duration_s for step in document.steps], dtype=np.float64)
        duration[:, (kind == DOWNLINK) | (kind == UPLINK)] = 0.0
        roots = np.flatnonzero(counts == 0)
        starts = [
            np.zeros(len(roots)) if step.start_s is None else np.array(step.start_s)[roots]
            for step in document.steps
        ]
        return cls(
            ops=OpArrays(
                kind=kind,
                server=server,
                queue=queue,
                size=np.array([op.size_bytes or 0 for op in document.ops], dtype=np.float64),
                successors=np.array([op for ops in after for op in ops], dtype=np.int64),
                first_successor=np.concatenate(([0], np.cumsum([len(ops) for ops in after]))).astype(
                    np.int64
                ),
                num_predecessors=counts,
                queue_offset=np.concatenate(([0], np.cumsum(in_queue))).astype(np.int64),
                num_servers=servers,
            ),
            duration_s=duration,
            roots=np.array([roots[np.argsort(start, kind="stable")] for start in starts], dtype=np.int64),
        )


def with_servers(document: StepsDocument, servers: int) -> StepsDocument:
    """Return the document with its parameters on another number of servers. This is an extrapolation.

    The ops of one parameter (``StepsOp.belongs_to``) stay together. Parameters go to the server with the
    fewest bytes so far, in the order of the ops that pull them. Parameters that are never pulled come last.

    Raises
    ------
    InvalidOptions
        If `servers` is less than 1.
    """
    if servers < 1:
        raise InvalidOptions(f"{servers} servers: expected at least 1")
    if servers == document.servers:
        return document
    sizes: dict[str, int] = {}
    for wanted in ("downlink", "uplink", "ps"):
        for op in document.ops:
            if op.resource == wanted:
                sizes.setdefault(op.belongs_to, op.size_bytes or 0)
    placed = dict(zip(sizes, least_bytes_servers(list(sizes.values()), servers), strict=True))
    ops = tuple(
        op if op.resource == "worker" else op.model_copy(update={"server": placed[op.belongs_to]})
        for op in document.ops
    )
    return document.replace(servers=servers, ops=ops)
