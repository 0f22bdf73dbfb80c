"""From a network and a batch of updates to their transfer plan: the one entry point."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pace.documents.profile import MAX_TOTAL_S
from pace.errors import InvalidOptions, SolverFailed
from pace.version import __version__
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.transfer_plan import (
    Commit,
    DroppedUpdate,
    PredictedCommits,
    ReplicaPlan,
    Transfer,
    TransferOptions,
    TransferPlan,
)
from pace_fabric.errors import InvalidFabric
from pace_fabric.problem import FabricProblem, problem_of, updates_of
from pace_fabric.solver.aggregation import Aggregation, Hop, aggregate, fastest_hosts, in_order_of_arrival
from pace_fabric.solver.capacity import Capacities, Reservation
from pace_fabric.solver.lower_bounds import machine_bound, time_indexed_bound
from pace_fabric.solver.ordering import Drop, Ordering, order_updates
from pace_fabric.solver.replication import LeadLimit, Replication, replicate
from pace_fabric.solver.search import search_order
from pace_fabric.solver.updates import Updates

if TYPE_CHECKING:
    from pace_fabric.solver.exact import ExactOrder

# Above this many updates the linear program would take longer than the plan.
_MOST_IN_PROGRAM = 40


def plan_transfers(
    network: FabricNetwork, batch: UpdateBatch, options: TransferOptions | None = None
) -> TransferPlan:
    """Plan the transfers of a batch: order, aggregation, and what the replica receives.

    Deterministic: the same documents and options give the same plan. Heuristic unless ``order="exact"``,
    and then exact among plans without aggregators; ``predicted.gap`` says how far it can be from the best.

    Raises
    ------
    InvalidFabric
        If the two documents do not fit, or the divergence bound cannot be kept.
    InvalidOptions
        If the exact order does not take this batch, or an option would have no effect.
    SolverFailed
        If the exact program ends without an optimum.
    """
    chosen = options or TransferOptions()
    if chosen.check != "commit" and batch.divergence is None:
        raise InvalidOptions(
            f'check "{chosen.check}" is for a replica, and the batch has no divergence limit: give the batch '
            "one, or leave check out"
        )
    problem = problem_of(network, batch)
    if chosen.order == "exact":
        ordering, server = _exactly(problem, chosen)
        aggregators: tuple[int, ...] = ()
    else:
        ordering = _ordered(problem, chosen)
        aggregators = fastest_hosts(
            problem.capacities, problem.aggregators, chosen.aggregators, seed=chosen.seed
        )
        made = aggregate(
            problem.updates, ordering.commits, problem.capacities, aggregators, size=problem.size
        )
        if made is None:
            raise InvalidFabric(
                "no kept update ever arrives, because its links have no rate: raise the rates of the network"
            )
        server = made
        if chosen.order == "search":
            listed = _as_listed(problem, ordering)
            # Groups follow the order of commits; a list may give bandwidth to what is committed later.
            if server.num_direct == len(ordering.commits) or _key(listed) <= _key(server):
                server = listed
        if chosen.rule == "strict" and chosen.late in ("drop", "pace"):
            server = in_order_of_arrival(server, problem.updates)
            ordering = replace(ordering, commits=server.order)
    replication = _replicated(problem, ordering, server, aggregators, chosen)
    if replication is not None:
        server = replication.server
    frozen = () if replication is None else replication.frozen
    last_s = max([server.last_s, *(hop.reservation.end_s for hop in (*server.hops, *frozen))])
    if last_s > MAX_TOTAL_S:
        raise InvalidFabric(
            f"the last update arrives at {last_s:g} s, later than {MAX_TOTAL_S:g} s: raise the rates"
        )
    return _document(problem, ordering, server, replication, chosen)


def _ordered(problem: FabricProblem, options: TransferOptions) -> Ordering:
    if options.order == "search":
        if options.rule != "strict" or options.late not in ("drop", "pace"):
            raise InvalidOptions('order "search" needs rule "strict" and late "drop" or "pace"')
        return search_order(problem.updates, problem.capacities)
    if options.rule == "paper" and options.late not in ("drop", "pace"):
        raise InvalidOptions(f'rule "paper" drops late updates: late "{options.late}" needs rule "strict"')
    return order_updates(problem.updates, problem.capacities, rule=options.rule, late=options.late)


def _exactly(problem: FabricProblem, options: TransferOptions) -> tuple[Ordering, Aggregation]:
    if options.rule != "strict" or options.late not in ("drop", "pace"):
        raise InvalidOptions('order "exact" needs rule "strict" and late "drop" or "pace"')
    if options.aggregators or options.seed is not None:
        raise InvalidOptions('order "exact" uses no aggregators: leave aggregators and seed out')
    from pace_fabric.solver.exact import solve_exactly  # its libraries are large

    try:
        exact = solve_exactly(problem.updates, problem.capacities)
    except ValueError as error:
        raise InvalidOptions(str(error)) from None
    except RuntimeError as error:
        raise SolverFailed(str(error)) from None
    end = np.full(len(problem.updates), np.nan)
    end[list(exact.commits)] = exact.commit_s
    kept = tuple(sorted(exact.commits))
    greedy = {drop.update: drop for drop in order_updates(problem.updates, problem.capacities).dropped}
    dropped = tuple(
        greedy.get(g) or Drop(update=g, reason="overtaken", witness=kept)
        for g in range(len(problem.updates))
        if g not in kept
    )
    ordering = Ordering(
        picked=exact.commits,
        commits=exact.commits,
        end_s=end,
        dropped=dropped,
        weights=np.ones(len(problem.updates)),
    )
    return ordering, _directly(problem, exact)


def _directly(problem: FabricProblem, exact: "ExactOrder") -> Aggregation:
    left = problem.capacities.copy()
    booked = []
    for g, pieces, end in zip(exact.commits, exact.pieces, exact.commit_s.tolist(), strict=True):
        left.book(int(problem.updates.host[g]), problem.server, pieces)
        arrived = float(pieces[-1, 1]) if len(pieces) else end
        booked.append(Reservation(end_s=arrived, pieces=pieces))
    return _all_direct(problem, exact.commits, exact.commit_s.tolist(), booked, left)


def _as_listed(problem: FabricProblem, ordering: Ordering) -> Aggregation:
    """Return the plan in which updates go directly, with bandwidth in the order in which they were picked."""
    left = problem.capacities.copy()
    booked = {g: problem.updates.reserve(g, left) for g in ordering.picked}
    commits = ordering.commits
    ends = np.maximum.accumulate([booked[g].end_s for g in commits]).tolist() if commits else []
    return _all_direct(problem, commits, ends, [booked[g] for g in commits], left)


def _all_direct(
    problem: FabricProblem,
    commits: Sequence[int],
    commit_s: Sequence[float],
    booked: Sequence[Reservation],
    left: Capacities,
) -> Aggregation:
    """Return the plan of transfers that are booked on `left`, one for every update."""
    hops = tuple(
        Hop(
            source=int(problem.updates.host[g]),
            target=problem.server,
            updates=(g,),
            size_bytes=float(problem.updates.size[g]),
            after=(),
            reservation=each,
        )
        for g, each in zip(commits, booked, strict=True)
    )
    groups = tuple(((g,), float(at)) for g, at in zip(commits, commit_s, strict=True))
    return Aggregation(num_direct=len(hops), hops=hops, groups=groups, left=left)


def _key(plan: Aggregation) -> tuple[float, float]:
    """Return what plans with aggregators are chosen by."""
    return plan.last_s, plan.mean_s


def _queue(problem: FabricProblem, ordering: Ordering) -> Updates:
    """Return the punted updates, then the batch's in commit order."""
    batch = problem.batch
    waiting = tuple(batch.updates[g] for g in ordering.commits)
    return updates_of(problem.network, (*batch.punted, *waiting), batch)


def _replicated(
    problem: FabricProblem,
    ordering: Ordering,
    server: Aggregation,
    aggregators: tuple[int, ...],
    options: TransferOptions,
) -> Replication | None:
    batch = problem.batch
    if batch.divergence is None or problem.replica is None:
        return None
    norms = [*(update.norm for update in batch.punted), *problem.norms[list(ordering.commits)].tolist()]
    made = replicate(
        _queue(problem, ordering),
        np.array(norms),
        server,
        len(batch.punted),
        problem.capacities,
        problem.replica,
        LeadLimit(
            kind=batch.divergence.kind,
            most=batch.divergence.max,
            gamma=batch.momentum,
            history_norm=batch.history_norm,
        ),
        aggregators,
        check=options.check,
        size=problem.size,
        buffer_bytes=np.inf if batch.buffer_bytes is None else float(batch.buffer_bytes),
    )
    if made is None:
        raise InvalidFabric(
            "the divergence bound cannot be kept, because no link carries updates to the replica: "
            "raise the rates of the network"
        )
    return made


def _document(
    problem: FabricProblem,
    ordering: Ordering,
    server: Aggregation,
    replication: Replication | None,
    options: TransferOptions,
) -> TransferPlan:
    batch = problem.batch
    names = [update.id for update in batch.updates]
    queued = [*(update.id for update in batch.punted), *(names[g] for g in ordering.commits)]
    transfers = _transfers(problem, server.hops, 0, names)
    if replication is not None:
        transfers += _transfers(problem, replication.frozen, len(transfers), queued)
    version = batch.version
    commits = []
    for group, at in server.groups:
        version += len(group)
        weights = tuple(float(ordering.weights[g]) for g in group)
        commits.append(
            Commit(updates=tuple(names[g] for g in group), at_s=at, version=version, weights=weights)
        )
    replica = ReplicaPlan()
    if replication is not None:
        replica = ReplicaPlan(
            frozen=tuple(queued[number] for number in replication.frozen_updates),
            punted=tuple(queued[number] for number in replication.punted),
            bound=replication.bound,
            delay_s=replication.delay_s,
        )
    return TransferPlan(
        batch_sha256=batch.sha256,
        rule=options.rule,
        late=options.late,
        check=options.check,
        solver=__version__,
        order=tuple(names[g] for g in ordering.commits),
        dropped=tuple(
            DroppedUpdate(id=names[d.update], reason=d.reason, witness=tuple(names[g] for g in d.witness))
            for d in ordering.dropped
        ),
        transfers=tuple(transfers),
        commits=tuple(commits),
        replica=replica,
        predicted=_prediction(problem, ordering, server),
    )


def _transfers(
    problem: FabricProblem, hops: tuple[Hop, ...], first: int, names: Sequence[str]
) -> list[Transfer]:
    """Return the hops between different hosts, numbered from `first`."""
    hosts = problem.network.hosts
    number: dict[int, int] = {}
    transfers: list[Transfer] = []
    for place, hop in enumerate(hops):
        if hop.source == hop.target:
            continue
        number[place] = first + len(transfers)
        start = max([hop.reservation.start_s, *(hops[earlier].reservation.end_s for earlier in hop.after)])
        transfers.append(
            Transfer(
                id=number[place],
                source=hosts[hop.source].name,
                target=hosts[hop.target].name,
                updates=tuple(names[g] for g in hop.updates),
                size_bytes=round(hop.size_bytes),
                after=tuple(number[earlier] for earlier in hop.after if earlier in number),
                start_s=start,
                end_s=hop.reservation.end_s,
                rates=tuple((p[0], p[1], p[2]) for p in hop.reservation.pieces.tolist()),
            )
        )
    return transfers


def _prediction(problem: FabricProblem, ordering: Ordering, server: Aggregation) -> PredictedCommits:
    kept = np.array(ordering.commits, dtype=np.int64)
    if not len(kept):
        return PredictedCommits(last_commit_s=0.0, mean_commit_s=0.0, lower_bound_s=0.0, gap=0.0)
    updates = problem.updates.take(kept)
    relayed = server.num_direct < len(kept)
    if relayed:
        bound = _bound_of_sums(problem, updates)
    elif len(kept) <= _MOST_IN_PROGRAM:
        bound = time_indexed_bound(updates, problem.capacities, server.last_s)
        bound = max(bound, machine_bound(updates, problem.capacities))
    else:
        bound = machine_bound(updates, problem.capacities)
    mean = server.mean_s
    lower = min(bound / len(kept), mean)
    return PredictedCommits(
        last_commit_s=server.last_s,
        mean_commit_s=mean,
        lower_bound_s=lower,
        bound="all" if relayed else "direct",
        gap=mean / lower - 1 if lower > 0 else 0.0,
    )


def _bound_of_sums(problem: FabricProblem, updates: Updates) -> float:
    """Return a bound on the sum of commit times if hosts add updates on the way.

    An update crosses its host's way up. A sum is as large as the largest of its updates, unless all sums are
    limited, and crosses the server's way down after that update was ready.
    """
    up_alone, down_alone = problem.capacities.copy(), problem.capacities.copy()
    anything = max(float(problem.capacities.most().sum()), 1.0)
    for host in range(problem.capacities.num_hosts):
        for free, link in ((up_alone, 2 * host + 1), (down_alone, 2 * host)):
            free.counts[link] = 1
            free.rates[link, 0] = anything
    smaller = replace(updates, size=np.minimum(updates.size, problem.size.at_most_bytes or np.inf))
    return sum(max(updates.finish(g, up_alone), smaller.finish(g, down_alone)) for g in range(len(updates)))
