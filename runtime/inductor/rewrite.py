"""Carries out a plan in an FX graph: order, buckets, and ties that Inductor's scheduler keeps.

``prove_order`` proves that a rewritten graph cannot hang: all ranks enqueue the same collectives in the same
order.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor import config
from torch._inductor.fx_passes import bucketing
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from pace.documents.order.job_program import EnqueuedOperation, HostThread
from pace.documents.schedule import Schedule
from pace.errors import InvalidSchedule
from pace.formats.tensor_types import DTYPES
from pace.order.check_order import check_order
from pace.order.inputs.fx_graphs import functional_call
from pace.order.inputs.job_groups import RankFile, job_of
from pace.runtime.inductor.fx_program import (
    FxProgram,
    bytes_of,
    group_name,
    is_collective,
    is_wait,
    origin,
    process_group,
    written_by,
)
from pace.runtime.inductor.node_times import is_kernel_of_torch

_MERGES: dict[str, Any] = {
    "all-gather": bucketing.merge_all_gather_bucket,
    "reduce-scatter": bucketing.merge_reduce_scatter_bucket,
    "all-reduce": bucketing.merge_all_reduce_bucket,
}


def apply_plan(graph: fx.Graph, program: FxProgram, schedule: Schedule) -> None:
    """Reorder a graph and fuse its buckets."""
    order = [program.nodes[number] for number in schedule.graph_plan.order]
    output = next(iter(graph.find_nodes(op="output")))
    for node in order:
        output.prepend(node)
    nodes = {node.name: node for node in order}
    for transfer in schedule.transfers:
        members = [nodes[name] for name in schedule.groups[transfer.group].tensors]
        if len(members) == 1 and not _gloo_may_crash(transfer.op, members[0]):
            continue
        # Torch traces each bucket, about 20 ms apiece. A lone all-gather of a known size needs no bucket.
        if len(members) == 1 and all(isinstance(size, int) for size in members[0].meta["val"].shape):
            _gather_into_given(graph, members[0])
        else:
            _fuse(graph, transfer.op, members)
    graph.lint()


def take_sizes_after_waits(graph: fx.Graph) -> None:
    """Let nodes that read the size of a collective's output read that of its wait, which is the same.

    A plan moves collectives and waits; only waits have outputs that others may read.
    """
    ops = torch.ops.aten
    for target in (ops.sym_size.int, ops.sym_stride.int, ops.sym_numel.default):
        for node in graph.find_nodes(op="call_function", target=target):
            (sent,) = node.all_input_nodes
            if is_collective(sent):
                wait = next((each for each in sent.users if is_wait(each)), None)
                if wait is None:
                    continue  # The reader of the graph refuses it.
                places = {each: place for place, each in enumerate(graph.nodes)}
                if places[wait] > places[node]:
                    node.prepend(wait)
                node.replace_input_with(sent, wait)


def _gloo_may_crash(op: str, node: fx.Node) -> bool:
    """Return whether a collective that is not in a bucket can corrupt memory of the process.

    Two threads of torch's Gloo write the name of the op that they completed to one string, without a lock
    (``ProcessGroupGloo::runLoop``, torch 2.9 to 2.14). That of all-gathers outside of buckets is the only
    one of these ops so long that its memory is freed, and so freed twice. Gathers of complex numbers stay as
    they are: Gloo cannot write them to memory that was allocated before.
    """
    value = node.meta["val"]
    return op == "all-gather" and value.device.type == "cpu" and not value.dtype.is_complex


def _gather_into_given(graph: fx.Graph, node: fx.Node) -> None:
    """Let an all-gather write to memory that is allocated before, as in a bucket of one."""
    value = node.meta["val"]
    with graph.inserting_before(node):
        given = graph.call_function(
            torch.ops.aten.empty.memory_format,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
        gathered = graph.call_function(
            torch.ops._c10d_functional.all_gather_into_tensor_out.default, node.args, {"out": given}
        )
    given.meta["val"] = value
    gathered.meta.update(node.meta)
    node.replace_all_uses_with(gathered)
    graph.erase_node(node)


def _fuse(graph: fx.Graph, op: str, members: Sequence[fx.Node]) -> None:
    places = {node: place for place, node in enumerate(graph.nodes)}
    members = sorted(members, key=places.__getitem__)
    # Before torch 2.13, a bucket of all-gathers starts after its last member, whatever insert_before says.
    for before, member in itertools.pairwise(members):
        before.append(member)
    _keep_casts_of_written(graph, members)
    waits = sorted((next(iter(member.users)) for member in members), key=places.__getitem__)
    _MERGES[op](
        graph,
        list(members),
        mode=getattr(config.aten_distributed_optimizations, "bucket_mode", None) or "custom_ops",
        wait_insertion_point=waits[0],
    )


def _keep_casts_of_written(graph: fx.Graph, members: Sequence[fx.Node]) -> None:
    """Put views behind casts of tensors that the graph writes: a bucket does other casts itself, later."""
    casting = [each for each in members if bucketing.has_mergeable_all_gather_convert_dtype(each)]
    if not casting:
        return
    written = {origin(each) for node in graph.nodes for each in written_by(node)}
    for member in casting:
        cast = member.args[0]
        assert isinstance(cast, fx.Node)
        if origin(cast.all_input_nodes[0]) in written:
            with graph.inserting_after(cast):
                view = graph.call_function(torch.ops.aten.view.default, (cast, cast.meta["val"].shape))
            view.meta["val"] = cast.meta["val"]
            member.replace_input_with(cast, view)


def tie(graph: fx.Graph) -> None:
    """Let collectives, waits and torch's own kernels follow one another as they do in the graph.

    Inductor's scheduler only keeps dependencies, so each of these nodes gets one on the node before it.
    """
    tied = [
        node
        for node in graph.nodes
        if node.op == "call_function" and (is_started(node) or is_wait(node) or is_kernel_of_torch(node))
    ]
    deps: dict[fx.Node, OrderedSet[fx.Node]] = {}
    for before, node in itertools.pairwise(tied):
        if before not in node.all_input_nodes:
            deps[node] = OrderedSet([before])
    preserve_node_ordering(graph, deps)


def is_started(node: fx.Node) -> bool:
    """Return whether a node starts a collective or a bucket of them."""
    return is_collective(node) or (
        node.target is torch.ops._c10d_functional.all_gather_into_tensor_out.default
    )


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
