"""The window that no schedule beats, of a profile or a graph."""

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.planning.graph.arrays import program_of
from pace.planning.graph.optimize import lower_bound_s as graph_bound_s
from pace.planning.sharded.optimize import optimize_sharded


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
