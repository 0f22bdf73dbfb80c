"""What a schedule of pushes and pulls says of links: rates, times and proofs, derived anew from the cluster.

Times are not simulated a second time. Between two stated moments it is known which messages are under way,
hence how fast each goes: added up, every message must have got its bytes exactly when it is said to end.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt

from pace.checker.derived_times import DerivedTimes, check_predicted, derive, same
from pace.checker.plan import check_execution, check_groups, check_identity
from pace.checker.proofs import check_chain
from pace.documents.profile import ELEMENT_BYTES, Profile
from pace.documents.proofs import Proof
from pace.documents.schedule import Schedule, Segment

# Stated times are rounded, and every message's bytes are a sum over many moments.
ROUNDINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRates:
    """The cluster's links, by formulas that share no code with the planner.

    Attributes
    ----------
    per_byte_s
        e: for a byte up, and again for a byte down; on shared links for both together.
    worker, connection
        Bytes per second of a worker's link and of one connection.
    overhead
        Bytes by which every message counts more than it has.
    shared
        Whether pushes and pulls meet on the links between workers' hosts, which are servers too.
    """

    workers: int

    per_byte_s: float
    worker: float
    connection: float
    overhead: float
    latency_s: float
    shared: bool


def rates_of(profile: Profile, schedule: Schedule) -> ServerRates | None:
    """Return the rates, or None where the servers do not fit the workers."""
    exchange = schedule.placement.exchange
    workers, servers, rate = profile.workers, exchange.servers, exchange.worker_bytes_per_s
    if exchange.colocated:
        if servers > workers or workers == 1:
            return None
        per_byte = ((servers - 1) + (workers - 1)) / servers / rate
        worker = 2 / per_byte
        connection = min(worker, rate / (workers - 1))
    else:
        at_server = exchange.server_bytes_per_s or rate
        per_byte = max(1 / rate, workers / servers / at_server)
        worker, connection = rate, min(rate, at_server / workers)
    return ServerRates(
        workers=workers,
        per_byte_s=per_byte,
        worker=worker,
        connection=connection,
        overhead=exchange.partition_s / per_byte,
        latency_s=exchange.round_trip_s,
        shared=exchange.colocated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """Bytes that travel of every segment, overhead included, and of every gradient without it."""

    pushed: list[float]
    pulled: list[float]
    gradient_pushed: dict[str, float]
    gradient_pulled: dict[str, float]


def wire_bytes(profile: Profile, schedule: Schedule, rates: ServerRates) -> WireBytes:
    """Apply the cluster's ratios to gradients, and each group's share to its segments."""
    up = {gradient.name: float(gradient.size_bytes) for gradient in profile.gradients}
    down = dict(up)
    for ratio in schedule.placement.ratios:
        up[ratio.gradient] = up.get(ratio.gradient, 0.0) * ratio.push
        down[ratio.gradient] = down.get(ratio.gradient, 0.0) * ratio.pull
    pushed, pulled = [], []
    for segment in schedule.of_op("push"):
        group = schedule.groups[segment.group]
        share = segment.size_bytes / group.size_bytes
        pushed.append(share * sum(up[name] for name in group.tensors) + rates.overhead)
        pulled.append(share * sum(down[name] for name in group.tensors) + rates.overhead)
    return WireBytes(pushed=pushed, pulled=pulled, gradient_pushed=up, gradient_pulled=down)


def _named(direction: str, number: int) -> str:
    """Return where the schedule has a push or a pull: each push is before its pull."""
    return f"{direction} transfers[{2 * number + (direction == 'pull')}]"


def check_messages(
    schedule: Schedule, rates: ServerRates, wire: WireBytes, times: DerivedTimes
) -> Iterator[str]:
    """Yield what is wrong with the messages: too early, two on one connection, too fast or too slow."""
    slack = times.slack_s
    pushes, pulls = list(schedule.of_op("push")), list(schedule.of_op("pull"))
    for number, (push, pull) in enumerate(zip(pushes, pulls, strict=True)):
        ready = schedule.groups[push.group].ready_s
        if push.start_s < ready - slack:
            yield f"{_named('push', number)}: is pushed at {push.start_s!r}, its group is ready at {ready!r}"
        if pull.start_s < push.end_s + rates.latency_s - slack:
            yield f"{_named('pull', number)}: is pulled before a round trip after its push has passed"
        least = schedule.placement.exchange.min_partition_bytes
        if push.size_bytes < min(least, schedule.groups[push.group].size_bytes):
            yield (
                f"{_named('push', number)}: {push.size_bytes} bytes are part of a group and less than the "
                f"cluster's min_partition_bytes, {least}"
            )
    yield from check_execution(schedule)
    messages = [
        (segment.op, number, segment.start_s, segment.end_s, needed)
        for segments, wanted in ((pushes, wire.pushed), (pulls, wire.pulled))
        for number, (segment, needed) in enumerate(zip(segments, wanted, strict=True))
    ]
    events = sorted(
        (moment, opens, at)
        for at, (_, _, start, end, _) in enumerate(messages)
        for moment, opens in ((start, 1), (end, 0))
        if end > start
    )
    carried = [0.0] * len(messages)
    under_way: dict[int, str] = {}
    busy: dict[tuple[str, int], int] = {}
    before = 0.0
    for moment, opens, at in events:
        speeds = _speeds(
            {other: (way, pushes[messages[other][1]].link) for other, way in under_way.items()}, rates
        )
        for other, speed in speeds.items():
            carried[other] += speed * (moment - before)
        before = moment
        direction, number, *_ = messages[at]
        connection = (direction, pushes[number].link)
        if opens:
            ends_later = busy.get(connection)
            if ends_later is not None and messages[ends_later][3] > moment + slack:
                yield f"{_named(direction, number)}: its connection still carries another"
            busy[connection] = at
            under_way[at] = direction
        else:
            under_way.pop(at, None)
    for (direction, number, start, end, needed), got in zip(messages, carried, strict=True):
        if abs(got - needed) > ROUNDINGS * slack * rates.worker:
            yield (
                f"{_named(direction, number)}: from {start!r} to {end!r} its connection carries "
                f"{got!r} bytes, it has {needed!r}"
            )


def _speeds(under_way: Mapping[int, tuple[str, int]], rates: ServerRates) -> dict[int, float]:
    """Return the rate of each message under way, given its direction and its server's link."""
    if not rates.shared:
        counts = Counter(direction for direction, _ in under_way.values())
        return {
            at: min(rates.connection, rates.worker / counts[direction])
            for at, (direction, _) in under_way.items()
        }
    other = {"push": "pull", "pull": "push"}
    busy = set(under_way.values())
    kinds = {at: (direction, (other[direction], link) in busy) for at, (direction, link) in under_way.items()}
    of_kind = Counter(kinds.values())
    shares = host_shares(of_kind["push", False], of_kind["pull", False], of_kind["push", True], rates.workers)
    host = rates.connection * (rates.workers - 1)
    return {at: host * shares[kind] for at, kind in kinds.items()}


@cache
def host_shares(pushed: int, pulled: int, both: int, workers: int) -> dict[tuple[str, bool], float]:
    """Return what share of a host's link each kind of message has, where hosts of workers are the servers.

    A kind is a direction, and whether the server's other direction is busy as well. Each message crosses the
    links of its server and of all other hosts. Kinds grow together until a link that they cross is full.
    """
    hosts: dict[str, tuple[int, dict[tuple[str, bool], int]]] = {}
    for number, push, pull in (
        (pushed, True, False),
        (pulled, False, True),
        (both, True, True),
        (workers - pushed - pulled - both, False, False),
    ):
        # What it sends as a worker to other servers, and as a server to all others; then what it receives.
        mine = {("push", True): push and pull, ("push", False): push and not pull}
        mine |= {("pull", True): push and pull, ("pull", False): pull and not push}
        under_way = {("push", True): both, ("push", False): pushed, ("pull", True): both}
        under_way["pull", False] = pulled
        for as_worker in ("push", "pull"):
            crossing = {
                kind: under_way[kind] - is_mine if kind[0] == as_worker else (workers - 1) * is_mine
                for kind, is_mine in mine.items()
            }
            hosts[f"{push} {pull} {as_worker}"] = number, crossing
    links = [crossing for number, crossing in hosts.values() if number > 0]
    growing = {kind for crossing in links for kind, count in crossing.items() if count}
    shares = dict.fromkeys(growing, 0.0)
    while growing:
        room = [
            (1 - sum(count * shares[kind] for kind, count in crossing.items() if count), crossing)
            for crossing in links
        ]
        steps = [
            (left / load, crossing)
            for left, crossing in room
            if (load := sum(crossing[kind] for kind in growing))
        ]
        step = min(each for each, _ in steps)
        for kind in growing:
            shares[kind] += step
        full = [crossing for each, crossing in steps if each <= step + 1e-12]
        growing -= {kind for crossing in full for kind in tuple(growing) if crossing[kind]}
    return shares


def check_send_order(schedule: Schedule, rates: ServerRates, times: DerivedTimes) -> Iterator[str]:
    """Yield messages that start before a ready one of a smaller priority on their connection."""
    for direction in ("push", "pull"):
        by_link: dict[int, list[tuple[float, float, int, int]]] = {}
        pairs = zip(schedule.of_op("push"), schedule.of_op("pull"), strict=True)
        for number, (push, pull) in enumerate(pairs):
            ready, start = schedule.groups[push.group].ready_s, push.start_s
            if direction == "pull":
                ready, start = push.end_s + rates.latency_s, pull.start_s
            by_link.setdefault(push.link, []).append((start, ready, push.priority, number))
        for messages in by_link.values():
            for number, overtaken in _overtaken(messages, times.slack_s):
                yield (
                    f"{_named(direction, number)}: starts while {_named(direction, overtaken)}, of a "
                    "smaller priority, waits for the same connection"
                )


def _overtaken(messages: list[tuple[float, float, int, int]], slack_s: float) -> Iterator[tuple[int, int]]:
    """Yield messages of one connection, and a more urgent one that is ready and starts later.

    A message is its start, when it is ready, its priority and its number.
    """
    to_come = sorted(messages, key=lambda message: message[1], reverse=True)
    waiting: list[tuple[int, int]] = []
    started: set[int] = set()
    for start, _, priority, number in sorted(messages):
        while to_come and to_come[-1][1] < start - slack_s:
            heapq.heappush(waiting, to_come.pop()[2:])
        started.add(number)
        while waiting and waiting[0][1] in started:
            heapq.heappop(waiting)
        if waiting and waiting[0][0] < priority:
            yield number, waiting[0][1]


def check_pace(profile: Profile, schedule: Schedule) -> Iterator[str]:
    """Yield a pace that is not that of the cluster: the stated times would not be kept."""
    exchange, stated = schedule.placement.exchange, schedule.execution.connection_bytes_per_s
    if stated is None:
        return
    if exchange.colocated:
        yield f"execution.connection_bytes_per_s is {stated!r}: colocated servers' connections are not paced"
        return
    at_server = exchange.server_bytes_per_s or exchange.worker_bytes_per_s
    derived = min(exchange.worker_bytes_per_s / exchange.servers, at_server / profile.workers)
    if abs(stated - derived) > 1e-9 * derived:
        yield f"execution.connection_bytes_per_s is {stated!r}, derived {derived!r}"


def check_partition_sizes(schedule: Schedule, rates: ServerRates, wire: WireBytes) -> Iterator[str]:
    """Yield sizes of segments that are not those of the schedule."""
    solver, exchange = schedule.solver, schedule.placement.exchange
    sent = sum(max(up, wire.gradient_pulled[name]) for name, up in wire.gradient_pushed.items())
    derived = sqrt(sent * exchange.partition_s / rates.per_byte_s / (2 * exchange.servers))
    stated = solver.suggested_partition_bytes
    if stated is None or abs(stated - derived) > 1e-9 * derived:
        yield f"solver.suggested_partition_bytes is {stated!r}, derived {derived!r}"
    pushes = list(schedule.of_op("push"))
    travel = [max(up, down) - rates.overhead for up, down in zip(wire.pushed, wire.pulled, strict=True)]
    largest = min(max((push.size_bytes for push in pushes), default=0), max(travel, default=0.0))
    # No element is cut, and a rest below the least size goes with the segment before it.
    element = max((ELEMENT_BYTES[group.dtype] for group in schedule.groups), default=0)
    most = max(solver.partition_bytes or 0, element) + exchange.min_partition_bytes
    if largest > most * (1 + 1e-9):
        yield f"solver.partition_bytes is {solver.partition_bytes}, the largest transfer has {largest!r}"


def check_link_proofs(
    schedule: Schedule, rates: ServerRates, wire: WireBytes, times: DerivedTimes
) -> Iterator[str]:
    """Yield why the proofs do not prove the ideal, each set re-added."""
    connections = schedule.placement.exchange.servers * (2 if rates.shared else 1)
    whole = min(rates.worker, connections * rates.connection)
    alone = min(rates.worker, rates.connection)
    strongest = times.compute_s
    every = list(zip(schedule.of_op("push"), wire.pushed, wire.pulled, strict=True))
    on_server: dict[int | None, list[tuple[Segment, float, float]]] = defaultdict(list)
    for sent in every:
        on_server[sent[0].link // 2].append(sent)
    for place, proof in enumerate(schedule.proofs):
        if rates.shared and proof.link != "up":
            yield f'proof {place}: link is "{proof.link}", colocated servers have only "up"'
        crossing = on_server[proof.server] if proof.link == "server" else every
        jobs = list(_jobs(schedule, proof, crossing, rates, whole, alone))
        slack = times.slack_s
        inside = [
            duration
            for ready, duration, tail in jobs
            if ready >= proof.min_ready_s - slack and tail >= proof.min_tail_s - slack
        ]
        if (proof.num_transfers or 0) > len(inside):
            yield f"proof {place}: {proof.num_transfers} segments, at most {len(inside)} qualify"
        most = sum(sorted(inside, reverse=True)[: proof.num_transfers or 0])
        if proof.total_s > most + slack:
            yield f"proof {place}: total_s is {proof.total_s!r}, derived {most!r}"
        parts = proof.min_ready_s + proof.total_s + proof.min_tail_s
        # Without a segment nothing is sent after min_ready_s, and nothing is proved.
        if not same(proof.bound_s, parts if inside else 0.0, times):
            yield f"proof {place}: bound_s is {proof.bound_s!r}, its parts add up to {parts!r}"
        strongest = max(strongest, proof.bound_s)
    if not same(schedule.predicted.ideal_iteration_s, strongest, times):
        stated = schedule.predicted.ideal_iteration_s
        yield f"predicted.ideal_iteration_s is {stated!r}, the proofs prove {strongest!r}"


def _jobs(
    schedule: Schedule,
    proof: Proof,
    crossing: Iterable[tuple[Segment, float, float]],
    rates: ServerRates,
    whole: float,
    alone: float,
) -> Iterator[tuple[float, float, float]]:
    for segment, up, down in crossing:
        group = schedule.groups[segment.group]
        ready, tail = group.ready_s, group.tail_s
        if rates.shared:
            yield ready, (up + down) / whole, tail
        elif proof.link == "down":
            yield ready + up / alone + rates.latency_s, down / whole, tail
        elif proof.link == "up":
            yield ready, up / whole, tail + rates.latency_s + down / alone
        else:
            yield ready, up / alone, tail + rates.latency_s + down / alone


def check_servers_bound(
    schedule: Schedule, rates: ServerRates, wire: WireBytes, times: DerivedTimes
) -> Iterator[str]:
    """Yield why the bound against every partition does not hold."""
    bound = schedule.bound
    assert bound is not None
    if rates.shared:
        if bound.link != "up":
            yield f'bound: link is "{bound.link}", colocated servers have only "up"'
        travelling = {name: up + wire.gradient_pulled[name] for name, up in wire.gradient_pushed.items()}
        per_byte, latency = rates.per_byte_s / 2, 0.0
    else:
        travelling = wire.gradient_pushed if bound.link == "up" else wire.gradient_pulled
        per_byte, latency = rates.per_byte_s, rates.latency_s
    slack = times.slack_s
    inside = [
        size
        for name, size in travelling.items()
        if size
        and times.ready[name] >= bound.min_ready_s - slack
        and times.tail[name] >= bound.min_tail_s - slack
    ]
    most = sum(sorted(inside, reverse=True)[: bound.num_gradients])
    if bound.total_bytes > most * (1 + 1e-12) or bound.num_gradients > len(inside):
        yield (
            f"bound: {bound.num_gradients} gradients have {bound.total_bytes!r} bytes, but the largest "
            f"{bound.num_gradients} of the {len(inside)} that qualify have {most!r}"
        )
    limits = (
        ("seconds_per_byte", bound.seconds_per_byte, per_byte * (1 + 1e-12)),
        ("latency_s", bound.latency_s, schedule.placement.exchange.partition_s),
        ("round_trip_s", bound.round_trip_s, latency),
    )
    for field, stated, most in limits:
        if stated > most:
            yield f"bound.{field} is {stated!r}, the cluster allows {most!r}"
    total = bound.latency_s + bound.round_trip_s + bound.total_bytes * bound.seconds_per_byte
    parts = bound.min_ready_s + total + bound.min_tail_s if bound.total_bytes else 0.0
    if not same(bound.bound_s, parts, times):
        yield f"bound.bound_s is {bound.bound_s!r}, its parts add up to {parts!r}"


def check_servers_predictions(schedule: Schedule, times: DerivedTimes) -> Iterator[str]:
    """Yield the predictions that do not follow from the segments and the profile."""
    ends = [group.ready_s for group in schedule.groups]
    for segment in schedule.of_op("pull"):
        ends[segment.group] = max(ends[segment.group], segment.end_s)
    realized = max(
        (end + group.tail_s for end, group in zip(ends, schedule.groups, strict=True)), default=0.0
    )
    chain = schedule.chain_bound.bound_s if schedule.chain_bound else 0.0
    least = schedule.bound.bound_s if schedule.bound else 0.0
    lower = max(times.compute_s, least, chain)
    derived = {"iteration_s": max(times.compute_s, realized), "lower_bound_s": lower}
    yield from check_predicted(schedule, times, derived)


def check_servers(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule for servers is wrong for its profile."""
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
        check_partition_sizes(schedule, rates, wire),
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
