"""The proof that a rewritten graph cannot hang: all ranks enqueue the same collectives in the same order."""

from collections.abc import Sequence
from typing import Literal

import torch.distributed as dist
from torch import fx

from pace.documents.order.job_program import (
    EnqueuedCollective,
    HostThread,
    JobProgram,
    ProcessGroup,
    RankProgram,
)
from pace.errors import InvalidSchedule
from pace.formats.node_list import COLLECTIVES
from pace.order.check_order import check_order
from pace.runtime.inductor.fx_program import FxProgram, bytes_of, group_name, process_group
from pace.runtime.inductor.rewrite import is_started

Issued = tuple[int, str, int, str]
"""A group's number, an op, its input bytes and its dtype."""


def issued(graph: fx.Graph, program: FxProgram) -> tuple[Issued, ...]:
    """Return the collectives of a rewritten graph in the order in which they are issued."""
    numbers = {group.name: number for number, group in enumerate(program.groups)}
    found = []
    for node in graph.nodes:
        if is_started(node):
            assert not isinstance(node.target, str)
            source = node.args[0]
            assert isinstance(source, fx.Node)
            value = source.meta["val"]
            op = COLLECTIVES[node.target._opname.removesuffix("_out")]
            group = process_group(group_name(node)).group_name
            found.append((numbers[group], op, bytes_of(value), str(value.dtype)))
    return tuple(found)


def prove_order(
    name: str,
    members: Sequence[tuple[tuple[int, ...], ...]],
    ranks: list[int],
    programs: Sequence[tuple[Issued, ...]],
) -> None:
    """Prove that ranks with these programs meet in every collective.

    Parameters
    ----------
    members
        For each rank, the ranks of its process groups.
    programs
        What each rank issues.

    Raises
    ------
    InvalidSchedule
        If they may wait for one another for ever; the message has the counterexample.
    """
    backend: Literal["nccl", "gloo"] = "nccl" if "nccl" in dist.get_backend() else "gloo"
    outside = sorted({rank for each in members for group in each for rank in group} - set(ranks))
    if outside:
        raise InvalidSchedule(
            f"{name} has collectives with rank {outside[0]}, which does not compile it: "
            "give the process group of all ranks that compile the same model"
        )
    job = JobProgram(
        name=name,
        groups=tuple(
            ProcessGroup(
                name=f"group {number}",
                communicators=tuple(sorted({each[number] for each in members})),
                backend=backend,
            )
            for number in range(len(members[0]))
        ),
        programs=tuple(
            RankProgram(
                ranks=(rank,),
                threads=(
                    HostThread(
                        operations=tuple(
                            EnqueuedCollective(
                                group=f"group {group}",
                                op=op,
                                size_bytes=size,
                                dtype=dtype,
                            )
                            for group, op, size, dtype in program
                        )
                    ),
                ),
            )
            for rank, program in zip(ranks, programs, strict=True)
        ),
    )
    report = check_order(job)
    if not report.cannot_hang:
        raise InvalidSchedule(f"{name} would hang: {report.findings[0].title}")
