"""The entry point for simulation: it compares several policies on the same windows of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pace.documents.base import refuse_other
from pace.documents.cluster import Cluster
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options, SimulationOptions
from pace.documents.profile import Profile
from pace.errors import InvalidOptions, InvalidProfile
from pace.planning.servers.optimize import cluster_of
from pace.simulation.graph.run import GraphSimulation, run_graph_policy
from pace.simulation.registry import knobs_of, make_policy, policies_for
from pace.simulation.run import Simulation, run_policy
from pace.simulation.servers.run import ServersSimulation, run_server_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPolicy:
    """One policy's windows.

    Attributes
    ----------
    policy
        Its name.
    knobs
        The knobs that were set.
    run
        The windows in detail.
    """

    policy: str
    knobs: dict[str, Any]
    run: Simulation | ServersSimulation | GraphSimulation

    @property
    def iteration_s(self) -> float:
        """Mean length of a window in seconds."""
        return self.run.iteration_s

    @property
    def iterations_s(self) -> tuple[float, ...]:
        """Lengths of all windows in seconds."""
        return tuple(float(each) for each in self.run.iterations_s)


def simulate(
    profile: Profile | CollectiveGraph,
    policies: str | Sequence[str] | None = None,
    options: SimulationOptions | None = None,
) -> dict[str, SimulatedPolicy]:
    """Simulate a profile or a graph under several policies; return the windows of each, by name.

    Parameters
    ----------
    profile
        Windows of a profile are the same for all policies.
    policies
        Names in ``POLICIES``, in ``SERVER_POLICIES`` with a cluster, or in ``GRAPH_POLICIES`` for a graph
        (default: all of the exchange).

    Raises
    ------
    InvalidOptions
        If a policy or a knob is unknown, or options do not fit one another or the policies.
    InvalidCluster
        If the servers do not fit the profile.
    """
    options = SimulationOptions() if options is None else options
    refuse_other(options, SimulationOptions, InvalidOptions)
    if isinstance(profile, CollectiveGraph):
        options.refuse_others("graph")
        options = options.model_copy(update={"exchange": "graph"})
    else:
        refuse_other(profile, Profile, InvalidProfile)
        if options.exchange == "graph":
            raise InvalidOptions('exchange "graph" is not possible for a profile: leave exchange out')
        options.refuse_others(options.policies_of or "allreduce")
    names = _names(policies, options)
    known = {knob for name in names for knob in knobs_of(name, options.policies_of)}
    for knob in options.knobs:
        if knob not in known:
            raise InvalidOptions(f'no knob "{knob}": these policies have {", ".join(sorted(known))}')
    if isinstance(profile, CollectiveGraph):
        return {name: _simulated_graph(profile, name, options) for name in names}
    cluster = None
    if options.policies_of == "servers":
        cluster = cluster_of(profile, Options(cluster=options.cluster))
    return {name: _simulated(profile, name, cluster, options) for name in names}


def _simulated_graph(graph: CollectiveGraph, name: str, options: SimulationOptions) -> SimulatedPolicy:
    known = knobs_of(name, "graph")
    knobs = {knob: value for knob, value in options.knobs.items() if knob in known}
    return SimulatedPolicy(
        policy=name, knobs=knobs, run=run_graph_policy(graph, make_policy(name, "graph", **knobs))
    )


def _names(policies: str | Sequence[str] | None, options: SimulationOptions) -> tuple[str, ...]:
    if isinstance(policies, str):
        return (policies,)
    if policies is not None:
        if not isinstance(policies, Sequence):
            raise InvalidOptions(f"policies are names (got {policies!r})")
        return tuple(policies)
    # TicTac's steps end at a barrier.
    unfit = ("tio", "tao") if options.policies_of == "servers" and options.is_stale else ()
    return tuple(name for name in policies_for(options.policies_of) if name not in unfit)


def _simulated(
    profile: Profile, name: str, cluster: Cluster | None, options: SimulationOptions
) -> SimulatedPolicy:
    known = knobs_of(name, options.policies_of)
    knobs = {knob: value for knob, value in options.knobs.items() if knob in known}
    run: Simulation | ServersSimulation
    if cluster is None:
        run = run_policy(
            profile,
            make_policy(name, **knobs),
            iterations=options.iterations,
            jitter=options.jitter,
            seed=options.seed,
        )
    else:
        run = run_server_policy(
            profile,
            cluster,
            make_policy(name, "servers", **knobs),
            iterations=options.iterations,
            jitter=options.jitter,
            seed=options.seed,
            consistency=options.consistency,
            staleness=options.staleness,
        )
    return SimulatedPolicy(policy=name, knobs=knobs, run=run)
