"""The entry point for schedules: it chooses the exchange for a profile, and the exchange's planner."""

from collections.abc import Callable
from functools import partial

from pace.documents.base import refuse_other
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, Communicator, GraphNode, OpCost
from pace.documents.half_costs import SampledHalf
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Exchange, Schedule
from pace.errors import InvalidOptions, InvalidProfile
from pace.planning.allreduce import optimize as allreduce
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import lower_bound_s as graph_bound_s
from pace.planning.graph.optimize import optimize_graph
from pace.planning.servers.optimize import optimize_servers
from pace.planning.sharded.optimize import optimize_sharded
from pace.solver.graph.search import MOST_NODES

_PLANNERS: dict[Exchange, Callable[[Profile, Options], Schedule]] = {
    "allreduce": optimize_allreduce,
    "sharded": optimize_sharded,
    "servers": optimize_servers,
}


def optimize(profile: Profile | CollectiveGraph, options: Options | None = None) -> Schedule:
    """Return the schedule that minimizes the predicted iteration time of a profile or a graph.

    The same profile and options give the same schedule, byte for byte, except for the recorded seconds of
    linear programs. The schedule contains a lower bound that no schedule with its exchange beats, and the
    proof.

    Parameters
    ----------
    profile
        The measured iteration, or a graph of ops and collectives.
    options
        ``exchange`` sets how gradients become updates (default: by ``exchange_for``).

    Raises
    ------
    InvalidOptions
        If the options do not fit one another or the profile; the message says which would.
    InvalidCluster
        If the parameter servers do not fit the profile.
    SolverFailed
        If the oracle finds no solution.
    """
    options = Options() if options is None else options
    if isinstance(profile, CollectiveGraph):
        refuse_other(options, Options, InvalidOptions)
        return optimize_graph(profile, options)
    refuse_other(profile, Profile, InvalidProfile)
    refuse_other(options, Options, InvalidOptions)
    exchange = exchange_for(profile, options)
    if exchange == "graph" or options.memory_bytes is not None:
        raise InvalidOptions('exchange "graph" and memory_bytes need a graph, not a profile')
    if exchange != "servers" and (
        options.cluster is not None or options.partition_bytes is not None or options.discipline != "overtake"
    ):
        raise InvalidOptions(
            'cluster, partition_bytes and discipline need exchange "servers": leave them out'
        )
    return _PLANNERS[exchange](profile, options)


def exchange_for(profile: Profile, options: Options) -> Exchange:
    """Return the exchange that the options name, or else the one that fits the profile.

    This is "servers" if the cost or the options have parameter servers, "sharded" if updates wait for a
    global norm, and otherwise "allreduce". A framework with a barrier has only all-reduces.
    """
    if options.exchange is not None:
        return options.exchange
    if options.framework is not None:
        return "allreduce"
    if options.cluster is not None or isinstance(profile.allreduce, PushPull):
        return "servers"
    return "sharded" if profile.update == "global-norm" else "allreduce"


def lower_bound_s(profile: Profile | CollectiveGraph) -> float:
    """Return the window in seconds that no schedule of all-reduces beats; with a norm, no sharded one.

    For a graph, no plan ends earlier, with any amount of memory.
    """
    if isinstance(profile, CollectiveGraph):
        return graph_bound_s(program_of(profile))
    bound = optimize_allreduce(profile).predicted.lower_bound_s
    if profile.update == "per-gradient" or isinstance(profile.allreduce, PushPull):
        return bound
    return min(bound, optimize_sharded(profile).predicted.lower_bound_s)


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
        nodes=tuple(nodes),
    )
