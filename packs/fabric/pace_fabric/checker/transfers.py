"""An independent judge of transfer plans: every byte, rate, arrival and bound is added up again.

Links are looked at moment by moment instead of being booked, delays are counted commit by commit, and the
divergence is bounded by following the history instead of by its closed form.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from pace_fabric.checker.paper_rule import check_paper_rule
from pace_fabric.checker.transfer_bounds import could_be_delivered, greatest_bound_s
from pace_fabric.documents.batch import PendingUpdate, UpdateBatch
from pace_fabric.documents.network import FabricHost, FabricNetwork
from pace_fabric.documents.transfer_plan import TransferPlan

# Shares of a size, a rate or the plan's length that count as rounding.
_SLACK = 1e-6

# Bytes are whole, and are planned in floats.
_SIZE_SLACK = 2**-50

# Two solutions of one linear program may differ by this share.
_BOUND_SLACK = 1e-4


def check_transfers(network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan) -> list[str]:
    """Return every way in which `plan` is not a right plan for the batch on the network; empty if it is one.

    A plan is judged by the rules that it names. One of the rule "paper" may commit updates after their bound,
    and must be what Algorithm 2 of the MLfabric paper gives. A plan may be slower than the best, but the
    bound that it states must follow from the network and the batch.
    """
    if plan.batch_sha256 != batch.sha256:
        return [f"batch_sha256 is {plan.batch_sha256}, the batch's is {batch.sha256}"]
    known = {update.id: update for update in (*batch.punted, *batch.updates)}
    named = [name for transfer in plan.transfers for name in transfer.updates]
    named += [name for commit in plan.commits for name in commit.updates]
    named += [*plan.order, *plan.replica.frozen, *plan.replica.punted]
    named += [name for drop in plan.dropped for name in (drop.id, *drop.witness)]
    unknown = sorted({name for name in named if name not in known})
    hosts = {host.name for host in network.hosts}
    lost = sorted({h for t in plan.transfers for h in (t.source, t.target)} - hosts)
    if unknown or lost or [t.id for t in plan.transfers] != list(range(len(plan.transfers))):
        violations = [f'update "{name}" is not in the batch' for name in unknown]
        violations += [f'host "{name}" is not in the network' for name in lost]
        return violations or ["transfers are not numbered from 0 in order"]
    parts = (
        _check_fates(batch, plan),
        check_paper_rule(network, batch, plan) if plan.rule == "paper" else _check_drops(batch, plan),
        _check_undeliverable(network, plan, known),
        _check_transfers(network, batch, plan, known),
        _check_links(network, plan),
        _check_commits(network, batch, plan, known),
        _check_delays(batch, plan),
        _check_replica(network, batch, plan, known),
        _check_prediction(plan),
        _check_bound(network, batch, plan, known),
    )
    return [violation for part in parts for violation in part]


def _slack_s(plan: TransferPlan) -> float:
    return _SLACK * max([1e-3, *(commit.at_s for commit in plan.commits)])


def _check_fates(batch: UpdateBatch, plan: TransferPlan) -> Iterator[str]:
    """Yield updates that are not kept or dropped exactly once."""
    fates = Counter([*plan.order, *(drop.id for drop in plan.dropped)])
    for update in batch.updates:
        count = fates[update.id]
        if count != 1:
            yield f'update "{update.id}" is kept or dropped {count} times'
    for name in {update.id for update in batch.punted} & set(fates):
        yield f'update "{name}" is committed already'
    committed = [name for commit in plan.commits for name in commit.updates]
    if committed != list(plan.order):
        yield "the commits are not the order"


def _deadlines(batch: UpdateBatch) -> dict[str, int | None]:
    """Return the last position at which each of the batch's own updates may commit; None without a bound."""
    bound = batch.delay_bound
    return {
        update.id: None if bound is None else update.version + bound - batch.version
        for update in batch.updates
    }


def _check_drops(batch: UpdateBatch, plan: TransferPlan) -> Iterator[str]:
    """Yield drops whose reason or witness is wrong."""
    deadlines = _deadlines(batch)
    expired = {drop.id for drop in plan.dropped if drop.reason == "expired"}
    try:
        TopologicalSorter({drop.id: drop.witness for drop in plan.dropped}).prepare()
    except CycleError as error:
        yield f"dropped updates are witnesses of one another: {', '.join(sorted(set(error.args[1])))}"
    for drop in plan.dropped:
        if drop.id not in deadlines:
            continue
        last = deadlines[drop.id]
        if drop.id in drop.witness or len(set(drop.witness)) < len(drop.witness):
            yield f'update "{drop.id}": its witnesses are not other updates, each once'
        if drop.witness and drop.reason in ("expired", "undeliverable"):
            yield f'update "{drop.id}" is dropped as {drop.reason}, which needs no witnesses'
        if false := [name for name in drop.witness if name in expired or name not in deadlines]:
            yield f'update "{drop.id}": its witness "{false[0]}" is expired, or committed already'
        if drop.reason != "undeliverable" and last is None:
            yield f'update "{drop.id}" is dropped as {drop.reason}, and the batch has no delay bound'
        elif last is None:
            continue
        elif drop.reason == "expired" and last >= 1:
            yield f'update "{drop.id}" is dropped as expired, and may commit up to position {last}'
        elif drop.reason in ("infeasible", "overtaken") and last < 1:
            yield f'update "{drop.id}" is dropped as {drop.reason}, and is expired: no position is left'
        elif drop.reason == "infeasible":
            limits = [deadlines[name] for name in (drop.id, *drop.witness) if name in deadlines]
            latest = max((limit for limit in limits if limit is not None), default=0)
            if len(limits) <= latest:
                yield f'update "{drop.id}": {len(limits)} updates fit into {latest} positions'
        elif drop.reason == "overtaken" and len(drop.witness) < last:
            yield (
                f'update "{drop.id}" is dropped as overtaken, and may commit up to position {last}: '
                f"{len(drop.witness)} updates overtake it"
            )


def _check_undeliverable(
    network: FabricNetwork, plan: TransferPlan, known: dict[str, PendingUpdate]
) -> Iterator[str]:
    """Yield updates that are dropped as undeliverable though links have room for them."""
    pieces = _pieces(plan)
    for drop in plan.dropped:
        if drop.reason == "undeliverable" and could_be_delivered(network, known[drop.id], pieces):
            yield f'update "{drop.id}" is dropped as undeliverable, and its links can carry it to the server'


def _check_transfers(
    network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan, known: dict[str, PendingUpdate]
) -> Iterator[str]:
    """Yield transfers with wrong sizes, rates, hosts, or that start before what they carry is there."""
    slack_s = _slack_s(plan)
    for transfer in plan.transfers:
        name = f"transfer {transfer.id}"
        size = _sum_size(batch, [known[update] for update in transfer.updates])
        if abs(transfer.size_bytes - size) > _SIZE_SLACK * size:
            yield f"{name}: size_bytes is {transfer.size_bytes}, its updates have {size}"
        carried = sum((end - start) * rate for start, end, rate in transfer.rates)
        if abs(carried - transfer.size_bytes) > 1 + _SLACK * transfer.size_bytes:
            yield f"{name}: its rates carry {carried:.0f} bytes of {transfer.size_bytes}"
        if any(end < start or rate < 0 for start, end, rate in transfer.rates) or any(
            b[0] < a[1] - slack_s for a, b in pairwise(transfer.rates)
        ):
            yield f"{name}: its rates are not in order"
        if transfer.rates and (
            abs(transfer.rates[0][0] - transfer.start_s) > slack_s
            or abs(transfer.rates[-1][1] - transfer.end_s) > slack_s
        ):
            yield f"{name}: its rates do not begin with start_s and end with end_s"
        if transfer.end_s < transfer.start_s - slack_s:
            yield f"{name}: end_s {transfer.end_s!r} is before start_s {transfer.start_s!r}"
        for earlier in transfer.after:
            if earlier >= len(plan.transfers) or plan.transfers[earlier].end_s > transfer.start_s + slack_s:
                yield f"{name} starts before transfer {earlier} has arrived"
        incoming = {
            update: plan.transfers[earlier]
            for earlier in transfer.after
            if earlier < len(plan.transfers) and plan.transfers[earlier].target == transfer.source
            for update in plan.transfers[earlier].updates
        }
        for update in transfer.updates:
            if known[update].host == transfer.source:
                if transfer.start_s < known[update].ready_s - slack_s:
                    yield f'{name} starts before update "{update}" is ready'
            elif update not in incoming:
                yield f'{name}: update "{update}" is not at "{transfer.source}"'
        if transfer.target not in _goals(network) and transfer.target not in network.aggregators:
            yield f'{name}: "{transfer.target}" is no server, replica or aggregator'


def _goals(network: FabricNetwork) -> set[str]:
    return {network.server} | ({network.replica} if network.replica else set())


def _sum_size(batch: UpdateBatch, members: list[PendingUpdate]) -> int:
    sizes = [member.size_bytes for member in members]
    size = max(sizes)
    if batch.sum_size.at_most_bytes is not None and len(sizes) > 1:
        size = min(sum(sizes), batch.sum_size.at_most_bytes)
    return size * (2 if len(sizes) > 1 and batch.sum_size.momentum == "exact" else 1)


def _check_links(network: FabricNetwork, plan: TransferPlan) -> Iterator[str]:
    """Yield links that carry more than they can, between any two moments of change."""
    pieces = _pieces(plan)
    for host in network.hosts:
        for direction in ("up", "down"):
            if carried := pieces.get((direction, host.name)):
                yield from _check_link(host, direction, carried)


def _pieces(plan: TransferPlan) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """Return by direction and host how a plan uses a link."""
    pieces: defaultdict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for transfer in plan.transfers:
        for direction, name in (("up", transfer.source), ("down", transfer.target)):
            pieces[direction, name] += transfer.rates
    return pieces


def _check_link(host: FabricHost, direction: str, pieces: list[tuple[float, float, float]]) -> Iterator[str]:
    begin, until, rate = np.array(pieces).T
    times, steps = np.concatenate([begin, until]), np.concatenate([rate, -rate])
    order = np.argsort(times)
    running = np.concatenate([[0.0], np.cumsum(steps[order])])
    moments = np.unique([*times, *(change.at_s for change in host.changes)])
    middles = ((moments[1:] + moments[:-1]) / 2)[np.diff(moments) > 1e-9]
    used = running[np.searchsorted(times[order], middles)]
    field = f"{direction}_bytes_per_s"
    capacity = np.full(len(middles), getattr(host, field))
    for change in host.changes:
        if getattr(change, field) is not None:
            capacity[middles >= change.at_s] = getattr(change, field)
    for at in np.flatnonzero(used > capacity * (1 + _SLACK) + 1e-9)[:1]:
        seen = f"{used[at]:.6g} of {capacity[at]:.6g} bytes/s"
        yield f'"{host.name}" {direction} carries {seen} at {middles[at]:.6g} s'


def _arrivals(plan: TransferPlan, goal: str, known: dict[str, PendingUpdate]) -> dict[str, float]:
    """Return when each update, alone or in a sum, has arrived at a host."""
    arrived = {name: update.ready_s for name, update in known.items() if update.host == goal}
    for transfer in plan.transfers:
        if transfer.target == goal:
            arrived |= dict.fromkeys(transfer.updates, transfer.end_s)
    return arrived


def _check_commits(
    network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan, known: dict[str, PendingUpdate]
) -> Iterator[str]:
    """Yield commits before their arrival, out of order, or with wrong versions."""
    slack_s = _slack_s(plan)
    arrived = _arrivals(plan, network.server, known)
    received = Counter(
        name for transfer in plan.transfers if transfer.target == network.server for name in transfer.updates
    )
    for name in (name for name, times in received.items() if times > 1):
        yield f'update "{name}" reaches the server twice'
    for name in {drop.id for drop in plan.dropped} & set(received):
        yield f'update "{name}" is dropped and sent'
    version = batch.version
    before = 0.0
    for commit in plan.commits:
        version += len(commit.updates)
        label = f'commit of "{commit.updates[0]}"'
        if commit.version != version:
            yield f"{label}: version is {commit.version}, expected {version}"
        if commit.at_s < before - slack_s:
            yield f"{label} at {commit.at_s!r} s is before the commit that precedes it"
        before = max(before, commit.at_s)
        for name in commit.updates:
            if name not in arrived:
                yield f'{label}: update "{name}" never reaches the server'
            elif commit.at_s < arrived[name] - slack_s:
                yield f'{label} at {commit.at_s!r} s is before "{name}" arrives at {arrived[name]!r} s'


def _check_delays(batch: UpdateBatch, plan: TransferPlan) -> Iterator[str]:
    """Yield commits whose delay breaks the bound, or whose weight is not what that asks for."""
    deadlines = _deadlines(batch)
    weights = [weight for commit in plan.commits for weight in commit.weights]
    if len(weights) != len(plan.order):
        yield "there is not one weight for each committed update"
        return
    for position, (name, weight) in enumerate(zip(plan.order, weights, strict=True), start=1):
        last = deadlines.get(name)
        late = 0 if last is None else max(0, position - last)
        if late and plan.late != "downweight" and plan.rule == "strict":
            yield f'update "{name}" commits at position {position}, its bound is {last}'
        expected = (1 + late) ** -0.5 if plan.late == "downweight" else 1.0
        if abs(weight - expected) > 1e-9:
            yield f'update "{name}": its weight is {weight!r}, expected {expected!r}'


def _check_replica(
    network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan, known: dict[str, PendingUpdate]
) -> Iterator[str]:
    """Yield what the replica misses, and commits at which the server leads by too much."""
    replica = plan.replica
    if batch.divergence is None or network.replica is None:
        if replica.frozen or replica.punted or replica.bound or replica.delay_s:
            yield "the batch has no divergence bound, and the plan replicates"
        return
    queue = [*(update.id for update in batch.punted), *plan.order]
    if [*replica.frozen, *replica.punted] != queue:
        yield "the replica's frozen and punted updates are not the committed ones in order"
        return
    slack_s = _slack_s(plan)
    arrived = _arrivals(plan, network.replica, known)
    for name in replica.frozen:
        if name not in arrived:
            yield f'update "{name}" is frozen and never reaches the replica'
    most = batch.divergence.max
    count = len(batch.punted)
    for number, commit in enumerate(plan.commits, start=1):
        count += len(commit.updates)
        if plan.check == "batch-end" and number < len(plan.commits):
            continue
        # The replica applies in order: what arrives out of order counts once all before it is there.
        prefix = 0
        while prefix < count and arrived.get(queue[prefix], float("inf")) <= commit.at_s + slack_s:
            prefix += 1
        lead = _lead(batch, known, queue[:prefix], queue[prefix:count])
        if lead > most * (1 + 1e-9) + 1e-12:
            yield f'commit of "{commit.updates[0]}": the server leads by {lead:.6g}, the bound is {most:.6g}'
    if not -slack_s <= replica.delay_s <= plan.predicted.last_commit_s + slack_s:
        yield f"replica: delay_s is {replica.delay_s!r}, from 0 to the last commit was possible"
    stated = _lead(batch, known, list(replica.frozen), list(replica.punted))
    if abs(stated - replica.bound) > _SLACK * max(1.0, stated):
        yield f"replica: bound is {replica.bound!r}, derived {stated!r}"


def _lead(
    batch: UpdateBatch, known: dict[str, PendingUpdate], received: list[str], ahead: list[str]
) -> float:
    if batch.divergence is not None and batch.divergence.kind == "updates":
        return float(len(ahead))
    history = batch.history_norm
    for name in received:
        history = batch.momentum * history + known[name].norm
    distance = 0.0
    for name in ahead:
        history = batch.momentum * history + known[name].norm
        distance += history
    return distance


def _check_prediction(plan: TransferPlan) -> Iterator[str]:
    """Yield predictions that are not what the commits say."""
    slack_s = _slack_s(plan)
    times = [commit.at_s for commit in plan.commits for _ in commit.updates]
    last, mean = max(times, default=0.0), sum(times) / len(times) if times else 0.0
    stated = plan.predicted
    gap = mean / stated.lower_bound_s - 1 if stated.lower_bound_s > 0 else 0.0
    for field, value, derived in (
        ("last_commit_s", stated.last_commit_s, last),
        ("mean_commit_s", stated.mean_commit_s, mean),
        ("gap", stated.gap, gap),
    ):
        if abs(value - derived) > slack_s + _SLACK * abs(derived):
            yield f"predicted: {field} is {value!r}, derived {derived!r}"
    if stated.lower_bound_s > mean + slack_s:
        yield f"predicted: the plan's mean commit {mean!r} is below its bound {stated.lower_bound_s!r}"


def _check_bound(
    network: FabricNetwork, batch: UpdateBatch, plan: TransferPlan, known: dict[str, PendingUpdate]
) -> Iterator[str]:
    """Yield a lower bound that does not follow from the network and the updates that are kept."""
    kept = [known[name] for name in plan.order]
    stated = plan.predicted
    if not kept or stated.lower_bound_s <= 0:
        return
    added = any(
        transfer.target == network.server
        and {known[name].host for name in transfer.updates} != {transfer.source}
        for transfer in plan.transfers
    )
    if added and stated.bound != "all":
        yield f'predicted: bound is "{stated.bound}", and hosts add updates on the way: "all" is needed'
        return
    most = greatest_bound_s(
        network,
        kept,
        plan,
        relayed=stated.bound == "all",
        most_bytes=batch.sum_size.at_most_bytes or np.inf,
    )
    if stated.lower_bound_s > most * (1 + _BOUND_SLACK) + _slack_s(plan):
        yield f"predicted: lower_bound_s is {stated.lower_bound_s!r}, at most {most!r} can be shown"
