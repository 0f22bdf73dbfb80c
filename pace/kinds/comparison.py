"""Simulates a problem of any kind under several policies, on the same windows."""

from collections.abc import Sequence
from typing import Any

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options, SimulationOptions
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.kinds.kind import AnyProblem, Kind, SimulatedPolicy
from pace.kinds.registry import kind_of
from pace.simulation.registry import knobs_of, policies_for


def simulate(
    problem: AnyProblem,
    policies: str | Sequence[str] | None = None,
    options: SimulationOptions | None = None,
) -> dict[str, SimulatedPolicy]:
    """Simulate a profile or a graph under several policies; return the windows of each, by name.

    Parameters
    ----------
    problem
        Windows of a profile are the same for all policies.
    policies
        Names in ``POLICIES``, or those of ``policies_for`` the exchange: "servers" with a cluster, "graph"
        for a graph (default: all of them).

    Raises
    ------
    InvalidOptions
        If a policy or a knob is unknown, or options do not fit one another or the policies.
    InvalidCluster
        If the servers do not fit the profile.
    """
    options = SimulationOptions() if options is None else options
    refuse_other(options, SimulationOptions, InvalidOptions)
    kind, exchange = simulated_kind(problem, options)
    names = _names(policies, kind, exchange, options)
    refuse_unknown_knobs(options, names, exchange)
    found = {}
    for name in names:
        knobs = knobs_given(options, name, exchange)
        run = kind.simulate(problem, name, knobs, options)
        found[name] = SimulatedPolicy(policy=name, knobs=knobs, run=run)
    return found


def knobs_given(options: SimulationOptions, policy: str, exchange: Exchange | None) -> dict[str, Any]:
    """Return the options' values for a policy's knobs."""
    known = knobs_of(policy, exchange)
    return {knob: value for knob, value in options.knobs.items() if knob in known}


def refuse_unknown_knobs(
    options: SimulationOptions, policies: Sequence[str], exchange: Exchange | None
) -> None:
    """Refuse values of knobs that no policy has; raises InvalidOptions."""
    known = {name: knobs_of(name, exchange) for name in policies}
    for knob in options.knobs:
        if not any(knob in knobs for knobs in known.values()):
            told = (f'"{name}" has {", ".join(knobs) or "none"}' for name, knobs in known.items())
            raise InvalidOptions(f'no knob "{knob}": {"; ".join(told)}')


def simulated_kind(problem: AnyProblem, options: SimulationOptions) -> tuple[Kind, Exchange | None]:
    """Return the kind of which windows are simulated, and the exchange whose policies there are.

    Raises
    ------
    InvalidOptions
        If the options do not fit one another or the problem.
    """
    exchange: Exchange | None = "graph" if isinstance(problem, CollectiveGraph) else options.policies_of
    kind = kind_of(problem, Options(exchange=exchange or "allreduce"))
    options.refuse_others(kind.name)
    return kind, exchange


def _names(
    policies: str | Sequence[str] | None, kind: Kind, exchange: Exchange | None, options: SimulationOptions
) -> tuple[str, ...]:
    if isinstance(policies, str):
        return (policies,)
    if policies is not None:
        if not isinstance(policies, Sequence):
            raise InvalidOptions(f"policies are names (got {policies!r})")
        return tuple(policies)
    unfit = kind.unfit_policies(options)
    return tuple(name for name in policies_for(exchange) if name not in unfit)
