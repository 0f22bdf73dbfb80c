"""The proof that a rewritten graph cannot hang: all ranks enqueue the same collectives in the same order."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import fx

from pace.documents.order.job_program import EnqueuedOperation, HostThread
from pace.errors import InvalidSchedule
from pace.formats.tensor_types import DTYPES
from pace.order.check_order import check_order
from pace.order.inputs.fx_graphs import functional_call
from pace.order.inputs.job_groups import RankFile, job_of
from pace.runtime.inductor.fx_program import FxProgram, bytes_of, group_name, process_group
from pace.runtime.inductor.rewrite import is_started


def issued(graph: fx.Graph, program: FxProgram) -> RankFile:
    """Return the collectives of a rewritten graph in the order in which they are issued.

    Groups are numbered: ranks of one mesh dimension have other names for them.
    """
    numbers = {group.name: f"group {number}" for number, group in enumerate(program.groups)}
    operations: list[EnqueuedOperation] = []
    for node in graph.nodes:
        if is_started(node):
            assert not isinstance(node.target, str)
            source = node.args[0]
            assert isinstance(source, fx.Node)
            value = source.meta["val"]
            operations.append(
                functional_call(
                    node.target._opname,
                    numbers[process_group(group_name(node)).group_name],
                    name=node.name,
                    size_bytes=bytes_of(value),
                    dtype=DTYPES.get(str(value.dtype).removeprefix("torch.")),
                )
            )
    return RankFile(
        threads=(HostThread(operations=tuple(operations)),),
        group_sizes={numbers[group.name]: len(group.ranks) for group in program.groups},
        group_ranks={numbers[group.name]: group.ranks for group in program.groups},
    )


def prove_order(name: str, ranks: Sequence[int], programs: Sequence[RankFile]) -> None:
    """Prove that ranks with these programs meet in every collective.

    Raises
    ------
    InvalidSchedule
        If they may wait for one another for ever; the message has the counterexample.
    """
    members = {rank for program in programs for group in program.group_ranks.values() for rank in group}
    outside = sorted(members - set(ranks))
    if outside:
        raise InvalidSchedule(
            f"{name} has collectives with rank {outside[0]}, which does not compile it: "
            "give the process group of all ranks that compile the same model"
        )
    job = job_of(
        name,
        dict(zip(ranks, programs, strict=True)),
        {},
        "nccl" if "nccl" in dist.get_backend() else "gloo",
    )
    report = check_order(job)
    if not report.cannot_hang:
        raise InvalidSchedule(f"{name} would hang: {report.findings[0].title}")
