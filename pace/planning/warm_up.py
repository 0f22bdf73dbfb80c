"""Compiles the hot loops of all planners."""

from collections.abc import Callable
from functools import partial

from pace.documents.collective_costs import AffineAllReduce, SampledHalf
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, Communicator, GraphNode, OpCost
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.planning.allreduce import optimize as allreduce
from pace.planning.graph.optimize import optimize_graph
from pace.planning.sharded.optimize import optimize_sharded
from pace.solver.graph.search import MOST_NODES


def warm_up() -> None:
    """Compile every hot loop that ``optimize`` may call, so that no request waits for the compiler."""
    allreduce.warm_up()
    for part in warm_up_parts():
        part()


def warm_up_parts() -> list[Callable[[], object]]:
    """Return what ``warm_up`` does beyond schedules of all-reduces, part by part."""
    names = [f"gradient {layer}" for layer in range(4)]
    ops = [Op(name=f"bwd/{name}", duration_s=1.0, stream="compute") for name in names]
    ops += [
        Op(name=f"fwd/{name}", duration_s=1.0, stream="compute", waits_for=(name,)) for name in names[::-1]
    ]
    profile = Profile(
        name="warm-up",
        workers=2,
        ops=tuple(ops),
        gradients=tuple(Gradient(name=name, size_bytes=8, producer=f"bwd/{name}") for name in names),
        allreduce=AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1),
    )
    half = SampledHalf(samples=((4, 0.1), (8, 0.4), (16, 0.5)))
    costs = (profile, profile.replace(reduce_scatter=half, all_gather=half))
    sharded = [each.replace(update=update) for each in costs for update in ("per-gradient", "global-norm")]
    return [
        *(partial(optimize_sharded, each) for each in sharded),
        partial(optimize_graph, _large_graph(), Options()),
    ]


def _large_graph() -> CollectiveGraph:
    """Return a graph of gathers whose plans are too many to compare."""
    cost = OpCost(op="all-gather", cost=AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1))
    call = CollectiveCall(op="all-gather", communicator="data", input_bytes=8, output_bytes=16)
    nodes: list[GraphNode] = []
    for layer in range(MOST_NODES):
        gather, wait = f"gather {layer}", f"wait {layer}"
        nodes += [
            GraphNode(name=gather, collective=call),
            GraphNode(name=wait, deps=(gather,), waits_for=gather),
            GraphNode(name=f"op {layer}", deps=(wait,), duration_s=1.0, allocates_bytes=8),
        ]
    return CollectiveGraph(
        name="warm-up",
        wires=("network",),
        communicators=(Communicator(name="data", ranks=2, wire="network", costs=(cost,)),),
        copy_bytes_per_s=1.0,
        compute_slowdown=2.0,
        nodes=tuple(nodes),
    )
