"""The one entry point for simulation: a profile under several policies, compared on the same windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from pace.documents.base import Document, refuse_other
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions, InvalidProfile
from pace.planning.servers.optimize import cluster_of
from pace.simulation.registry import (
    POLICIES,
    SERVER_POLICIES,
    entry_of,
    knobs_of,
    make_policy,
    make_server_policy,
)
from pace.simulation.run import Simulation, run_policy
from pace.simulation.servers.run import Consistency, ExchangeSimulation, run_server_policy


class SimulationOptions(Document):
    """Options of ``simulate``.

    Attributes
    ----------
    exchange
        Which policies are compared if none are named: those of this exchange; None for all of one network, or
        for those of servers if there is a cluster.
    cluster
        The parameter servers; None for those of the profile's cost.
    iterations, jitter, seed
        How many windows; relative standard deviation of op durations; same seed, same windows.
    consistency, staleness
        With servers: "sync" or "async"; how many windows a worker may be ahead.
    knobs
        Values of knobs, for every policy that has them.
    """

    refused_as = InvalidOptions

    exchange: Exchange | None = None
    cluster: Cluster | None = None
    iterations: Annotated[int, Field(ge=1)] = 1
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    consistency: Consistency = "sync"
    staleness: Annotated[int, Field(ge=0)] | None = None
    knobs: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_stale(self) -> bool:
        """Whether workers may use parameters that lack other workers' newest updates."""
        return self.consistency == "async" or bool(self.staleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPolicy:
    """One policy's windows.

    Attributes
    ----------
    knobs
        Those of the options that it has.
    run
        Its windows in detail.
    """

    policy: str
    knobs: dict[str, Any]
    run: Simulation | ExchangeSimulation

    @property
    def iteration_s(self) -> float:
        """Mean length of a window in seconds."""
        return self.run.iteration_s

    @property
    def iterations_s(self) -> tuple[float, ...]:
        """Length of every window in seconds."""
        return tuple(float(each) for each in self.run.iterations_s)


def simulate(
    profile: Profile, policies: str | Sequence[str] | None = None, options: SimulationOptions | None = None
) -> dict[str, SimulatedPolicy]:
    """Simulate a profile under policies, all on the same windows, and return what each takes by name.

    Parameters
    ----------
    policies
        Names in ``POLICIES``, all of one network or all of servers; by default those that the options name.

    Raises
    ------
    InvalidOptions
        If a policy or a knob is unknown, or options do not fit one another or the policies.
    InvalidCluster
        If the servers do not fit the profile.
    """
    options = SimulationOptions() if options is None else options
    refuse_other(profile, Profile, InvalidProfile)
    refuse_other(options, SimulationOptions, InvalidOptions)
    names = _names(policies, options)
    known = {knob for name in names for knob in knobs_of(name)}
    for knob in options.knobs:
        if knob not in known:
            raise InvalidOptions(f'no knob "{knob}": these policies have {", ".join(sorted(known))}')
    of_servers = {name for name in names if entry_of(name).exchange == "servers"}
    if of_servers and len(of_servers) < len(set(names)):
        raise InvalidOptions("policies of one network and policies of servers have no windows in common")
    cluster = cluster_of(profile, Options(cluster=options.cluster)) if of_servers else None
    if cluster is None and (options.cluster is not None or options.is_stale or options.staleness is not None):
        raise InvalidOptions("cluster, consistency and staleness belong to policies of servers")
    return {name: _simulated(profile, name, cluster, options) for name in names}


def _names(policies: str | Sequence[str] | None, options: SimulationOptions) -> tuple[str, ...]:
    if isinstance(policies, str):
        return (policies,)
    if policies is not None:
        return tuple(policies)
    exchange = options.exchange or (None if options.cluster is None else "servers")
    if exchange != "servers":
        return tuple(name for name in POLICIES if exchange in (None, entry_of(name).exchange))
    # TicTac's steps end at a barrier.
    return tuple(name for name in SERVER_POLICIES if not (options.is_stale and name in ("ps-tio", "ps-tao")))


def _simulated(
    profile: Profile, name: str, cluster: Cluster | None, options: SimulationOptions
) -> SimulatedPolicy:
    knobs = {knob: value for knob, value in options.knobs.items() if knob in knobs_of(name)}
    run: Simulation | ExchangeSimulation
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
            make_server_policy(name, **knobs),
            iterations=options.iterations,
            jitter=options.jitter,
            seed=options.seed,
            consistency=options.consistency,
            staleness=options.staleness,
        )
    return SimulatedPolicy(policy=name, knobs=knobs, run=run)
