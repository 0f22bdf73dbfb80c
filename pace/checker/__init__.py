"""An independent judge of schedules: shares no code with the solver.

Every number is derived again. Ready times and tails come from networkx's topological order, durations from
separate code for the formulas, the oracle's optimum from its dual (the strongest of all sets, docs/solver.md)
instead of from a schedule. Times agree when they differ by less than one part in 10^9 of the window.
"""

from pace.checker.collective_times import allreduce_s
from pace.checker.derived_times import derive
from pace.checker.graph.check import check_graph
from pace.checker.plan import check_groups, check_identity, check_segments
from pace.checker.proofs import (
    check_bound,
    check_chain,
    check_chain_bound,
    check_predictions,
    check_proof,
)
from pace.checker.servers import (
    check_link_proofs,
    check_messages,
    check_pace,
    check_send_order,
    check_servers_bound,
    check_servers_predictions,
    rates_of,
    wire_bytes,
)
from pace.checker.sharded import check_sharded
from pace.checker.slots import check_slots
from pace.checker.under_load import check_under_load
from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.errors import InvalidProfile, InvalidSchedule

__all__ = ["allreduce_s", "check"]


def check(profile: Profile | CollectiveGraph, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule is wrong for its profile; an empty list if it is right.

    A schedule of exchange "graph" is checked against its graph. A schedule may be slower than the best:
    its proofs and bounds say how much, and they are computed again here.
    """
    if isinstance(profile, CollectiveGraph):
        refuse_other(schedule, Schedule, InvalidSchedule)
        return check_graph(profile, schedule)
    refuse_other(profile, Profile, InvalidProfile)
    refuse_other(schedule, Schedule, InvalidSchedule)
    match schedule.exchange:
        case "servers":
            return _check_servers(profile, schedule)
        case "sharded":
            return check_sharded(profile, schedule)
        case "graph":
            return ['the schedule has exchange "graph": check it against its graph, not a profile']
        case "allreduce":
            return _check_allreduce(profile, schedule)


def _check_allreduce(profile: Profile, schedule: Schedule) -> list[str]:
    times = derive(profile, schedule)
    parts = (
        check_identity(profile, schedule),
        check_groups(profile, schedule, times),
        check_segments(profile, schedule, times),
        check_slots(schedule, times),
        check_predictions(schedule, times),
        check_proof(schedule, times),
        check_bound(profile, schedule, times),
        check_chain_bound(profile, schedule, times),
    )
    violations = [violation for part in parts for violation in part]
    # Calls of gradients that are not the profile's have no times.
    return violations or list(check_under_load(profile, schedule, times))


def _check_servers(profile: Profile, schedule: Schedule) -> list[str]:
    times = derive(profile, schedule)
    rates = rates_of(profile, schedule)
    if rates is None:
        return [
            f"cluster: {schedule.placement.exchange.servers} servers do not fit {profile.workers} workers"
        ]
    known = {gradient.name for gradient in profile.gradients}
    violations = [*check_identity(profile, schedule), *check_groups(profile, schedule, times)]
    unknown = [ratio.gradient for ratio in schedule.placement.ratios if ratio.gradient not in known]
    violations += [
        f'cluster: a ratio names "{name}", which is no gradient of the profile' for name in unknown
    ]
    if unknown or any(name not in known for group in schedule.groups for name in group.tensors):
        return violations
    wire = wire_bytes(profile, schedule, rates)
    parts = (
        check_messages(schedule, rates, wire, times),
        check_send_order(schedule, rates, times),
        check_pace(profile, schedule),
        check_servers_predictions(schedule, times),
        check_link_proofs(schedule, rates, wire, times),
        check_servers_bound(schedule, rates, wire, times),
    )
    violations += [violation for part in parts for violation in part]
    chain = schedule.chain_bound
    if chain is not None:
        uneven = any(
            {wire.gradient_pushed[gradient.name], wire.gradient_pulled[gradient.name]}
            != {gradient.size_bytes}
            for gradient in profile.gradients
        )
        allowed = (schedule.placement.exchange.partition_s, rates.per_byte_s * (1 + 1e-12))
        if chain.latency_s > allowed[0] or chain.seconds_per_byte > allowed[1] or uneven:
            violations.append("chain_bound: its line lies above what the cluster's parts cost")
        behind = 0.0 if rates.shared else rates.latency_s
        violations += check_chain(profile, chain, times, behind_s=behind)
    return violations
