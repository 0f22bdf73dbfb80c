"""Carries out a plan in an FX graph: order, buckets, and ties that Inductor's scheduler keeps."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.fx_passes import bucketing
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from pace.documents.schedule import Schedule
from pace.runtime.inductor.fx_program import FxProgram, is_collective, is_wait
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
        if len(members) > 1:
            _fuse(graph, transfer.op, members)
        elif _gloo_may_crash(transfer.op, members[0]):
            _gather_into_given(graph, members[0])
    graph.lint()


def _gloo_may_crash(op: str, node: fx.Node) -> bool:
    """Return whether a collective that is not in a bucket can corrupt memory of the process.

    Two threads of torch's Gloo write the name of the op that they completed to one string, without a lock
    (``ProcessGroupGloo::runLoop``, torch 2.9 to 2.14). That of all-gathers outside of buckets is the only
    one of these ops so long that its memory is freed, and so freed twice.
    """
    return op == "all-gather" and node.meta["val"].device.type == "cpu"


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
    waits = sorted((next(iter(member.users)) for member in members), key=places.__getitem__)
    _MERGES[op](
        graph,
        list(members),
        mode=getattr(config.aten_distributed_optimizations, "bucket_mode", None) or "custom_ops",
        wait_insertion_point=waits[0],
    )


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
