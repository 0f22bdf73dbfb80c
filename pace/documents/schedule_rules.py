"""The rules that a schedule keeps whatever its profile: complete, in whole elements, on its own links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pace.documents.base import repeated
from pace.documents.profile import ELEMENT_BYTES

if TYPE_CHECKING:
    from pace.documents.proofs import SetBound
    from pace.documents.schedule import Schedule, TransferOp
    from pace.documents.sharding import Sharding


def server_links(num_servers: int) -> tuple[str, ...]:
    """Return the names of a worker's links to servers: two for each, first the one up to it."""
    return tuple(f"{way} {server}" for server in range(num_servers) for way in ("up", "down"))


def refuse_misfits(schedule: Schedule) -> None:
    """Raise ValueError for the first rule that a schedule breaks."""
    if (schedule.sharding is not None) != (schedule.exchange == "sharded"):
        raise ValueError('a schedule must have sharding if its exchange is "sharded", and only then')
    if (schedule.cluster is not None) != (schedule.exchange == "servers"):
        raise ValueError('a schedule must have a cluster if its exchange is "servers", and only then')
    if (schedule.graph is not None) != (schedule.exchange == "graph"):
        raise ValueError('a schedule must have a graph if its exchange is "graph", and only then')
    if schedule.framework is not None and schedule.exchange != "allreduce":
        raise ValueError(f'a schedule for {schedule.framework} must have exchange "allreduce"')
    if schedule.exchange != "allreduce" and (
        schedule.solver.slot_s is not None
        or any(each.start_slot is not None or each.num_slots is not None for each in schedule.transfers)
    ):
        raise ValueError('only a schedule with exchange "allreduce" may have slots')
    _refuse_foreign_fields(schedule)
    ops: tuple[TransferOp, ...]
    match schedule.exchange:
        case "allreduce":
            ops = ("all-reduce",)
            _refuse_unlike_links(schedule, ("network",))
        case "sharded":
            ops = ("reduce-scatter", "all-gather")
            _refuse_unlike_links(schedule, ("network",))
            _refuse_misplaced_shards(schedule, schedule.shard_layout)
        case "servers":
            ops = ("push", "pull")
            _refuse_unlike_links(schedule, server_links(schedule.placement.exchange.servers))
            _refuse_lone_pushes(schedule)
        case "graph":
            _refuse_odd_graph(schedule)
            return
    if schedule.exchange != "sharded":
        _refuse_repeated(name for group in schedule.groups for name in group.tensors)
    _refuse_gaps(schedule, ops)
    _refuse_unproved(schedule)


def _refuse_foreign_fields(schedule: Schedule) -> None:
    """Fields that are for one exchange or one oracle are in no other schedule."""
    solver, predicted, execution = schedule.solver, schedule.predicted, schedule.execution
    programs = solver.lp_solver, solver.num_programs, solver.programs_s
    if any((each is None) != (solver.oracle == "jackson") for each in programs):
        raise ValueError(
            'solver must have lp_solver, num_programs and programs_s if its oracle is "lp", and only then'
        )
    if schedule.exchange != "sharded" and any(group.op or group.shards for group in schedule.groups):
        raise ValueError("groups may have an op and shards in sharded schedules only")
    under_load, graph, servers = ("allreduce", "sharded"), ("graph",), ("servers",)
    for exchanges, field, value in (
        (under_load, "solver.curve", solver.curve or None),
        (under_load, "predicted.expected_s", predicted.expected_s),
        (under_load, "predicted.ddp_s", predicted.ddp_s),
        (graph, "predicted.peak_bytes", predicted.peak_bytes),
        (servers, "solver.order", solver.order),
        (servers, "solver.partition_bytes", solver.partition_bytes),
        (servers, "solver.suggested_partition_bytes", solver.suggested_partition_bytes),
        (servers, "execution.discipline", execution.discipline),
        (servers, "execution.connection_bytes_per_s", execution.connection_bytes_per_s),
    ):
        if value is not None and schedule.exchange not in exchanges:
            names = " or ".join(f'"{each}"' for each in exchanges)
            raise ValueError(f"only a schedule with exchange {names} may have {field}")


def _refuse_odd_graph(schedule: Schedule) -> None:
    """Each group is sent once and whole, and nodes are in the order once each."""
    _refuse_repeated(name for group in schedule.groups for name in group.tensors)
    order = schedule.graph_plan.order
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"order: expected the nodes 0 to {len(order) - 1}, each once")
    sent = sorted(transfer.group for transfer in schedule.transfers)
    if sent != list(range(len(schedule.groups))):
        raise ValueError("each group must have one transfer")
    for number, transfer in enumerate(schedule.transfers):
        if transfer.link >= len(schedule.links):
            raise ValueError(f"transfers[{number}] is on link {transfer.link} of {len(schedule.links)}")
        if transfer.offset_bytes or transfer.size_bytes != schedule.groups[transfer.group].size_bytes:
            raise ValueError(f"transfers[{number}] does not carry its whole group")
        if transfer.priority != number:
            raise ValueError(f"transfers[{number}]: priority {transfer.priority} is not its place")
        if transfer.op in ("push", "pull"):
            raise ValueError(f"transfers[{number}]: a graph has no {transfer.op}")
    if schedule.proofs or schedule.bound or schedule.chain_bound or schedule.norm_bound:
        raise ValueError("a schedule of a graph must have its proofs in graph")


def _refuse_repeated(names: Iterable[str]) -> None:
    if (twice := repeated(names)) is not None:
        raise ValueError(f'gradient "{twice}" is in two places')


def _refuse_unlike_links(schedule: Schedule, links: tuple[str, ...]) -> None:
    if schedule.links != links:
        raise ValueError(f"links are {', '.join(schedule.links)}; this exchange has {', '.join(links)}")


def _refuse_unproved(schedule: Schedule) -> None:
    """Proofs and bounds are those of the exchange, and say nothing that it does not have."""
    on_servers = schedule.exchange == "servers"
    behind_norm = schedule.sharding is not None and schedule.sharding.norm is not None
    if not on_servers and len(schedule.proofs) != 1:
        raise ValueError(f"there are {len(schedule.proofs)} proofs; expected one, as there is one network")
    for number, proof in enumerate(schedule.proofs):
        if (proof.link != "network") != on_servers or (proof.num_transfers is not None) != on_servers:
            raise ValueError(f"proof {number} is of link {proof.link}, which this exchange does not have")
        if (proof.server is not None) != (proof.link == "server"):
            raise ValueError(f'proof {number} must have a server if its link is "server", and only then')
        if (proof.norm_s and not behind_norm) or (on_servers and (proof.stretch_s or proof.set)):
            raise ValueError(
                f"proof {number} has a norm_s, stretch_s or set, which this exchange does not have"
            )
    if (schedule.norm_bound is not None) != behind_norm or (schedule.bound is None) != behind_norm:
        raise ValueError("a schedule must have norm_bound if updates wait for a norm, and bound otherwise")
    if schedule.exchange != "servers" and (schedule.chain_bound is None) != (schedule.exchange == "sharded"):
        raise ValueError("a schedule of all-reduces must have a chain_bound, and a sharded schedule none")
    if schedule.bound is not None:
        _refuse_bound_of_other_exchange(schedule.bound, schedule.exchange)
    for number, group in enumerate(schedule.groups):
        if (group.transfer_s is None) != on_servers:
            raise ValueError(f"group {number} must have transfer_s, except with servers")


def _refuse_bound_of_other_exchange(bound: SetBound, exchange: str) -> None:
    on_servers = exchange == "servers"
    if (bound.link != "network") != on_servers:
        expected = '"up" or "down"' if on_servers else '"network"'
        raise ValueError(f'bound.link is "{bound.link}": expected {expected} with exchange "{exchange}"')
    for field in ("stretch_s", "extra_s") if on_servers else ("round_trip_s",):
        if value := getattr(bound, field):
            raise ValueError(f'bound.{field} is {value!r}: expected 0 with exchange "{exchange}"')


def _refuse_gaps(schedule: Schedule, ops: tuple[TransferOp, ...]) -> None:
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {
        (op, number): []
        for op in ops
        for number, group in enumerate(schedule.groups)
        if group.op is None or group.op == op
    }
    units = [_unit_bytes(schedule, number) for number in range(len(schedule.groups))]
    places: set[int] = set()
    for number, transfer in enumerate(schedule.transfers):
        if transfer.group >= len(schedule.groups):
            raise ValueError(f"transfers[{number}] belongs to group {transfer.group}, which is no group")
        parts = ranges.get((transfer.op, transfer.group))
        if parts is None:
            raise ValueError(f"transfers[{number}]: group {transfer.group} has no {transfer.op}")
        if transfer.link >= len(schedule.links):
            raise ValueError(f"transfers[{number}] is on link {transfer.link} of {len(schedule.links)}")
        unit = units[transfer.group]
        if transfer.offset_bytes % unit or transfer.size_bytes % unit:
            raise ValueError(f"transfers[{number}] of group {transfer.group} cuts an element")
        if schedule.exchange != "allreduce" and transfer.op != "pull":
            if transfer.priority in places:
                raise ValueError(f"transfers[{number}]: another one has priority {transfer.priority}")
            places.add(transfer.priority)
        parts.append((transfer.offset_bytes, transfer.size_bytes))
    for (op, number), parts in ranges.items():
        _refuse_uncovered(f"group {number}, {op}", parts, schedule.groups[number].size_bytes)


def _unit_bytes(schedule: Schedule, number: int) -> int:
    """Return what no transfer of a group cuts: an element, or a column of a matrix."""
    group = schedule.groups[number]
    if group.size_bytes % ELEMENT_BYTES[group.dtype]:
        raise ValueError(f"group {number}: {group.size_bytes} bytes cut an element of {group.dtype}")
    if schedule.sharding is not None:
        return schedule.sharding.column_bytes(group.dtype)
    return ELEMENT_BYTES[group.dtype]


def _refuse_uncovered(what: str, parts: list[tuple[int, int]], size_bytes: int) -> None:
    covered = 0
    for offset, length in sorted(parts):
        if offset != covered:
            raise ValueError(f"{what}: transfers cover byte {min(offset, covered)} twice or not at all")
        covered += length
    if covered != size_bytes:
        raise ValueError(f"{what}: transfers cover {covered} bytes of {size_bytes}")


def _refuse_lone_pushes(schedule: Schedule) -> None:
    """A push and its pull stand one behind the other, on the two links of one server."""
    if len(schedule.transfers) % 2:
        raise ValueError("a push has no pull")
    for at in range(0, len(schedule.transfers), 2):
        push, pull = schedule.transfers[at : at + 2]
        sent = (push.group, push.offset_bytes, push.size_bytes, push.priority, push.link + 1)
        back = (pull.group, pull.offset_bytes, pull.size_bytes, pull.priority, pull.link)
        if (push.op, pull.op) != ("push", "pull") or push.link % 2 or sent != back:
            raise ValueError(f"transfers[{at}]: a push must be followed by the pull of the same bytes")


def _refuse_misplaced_shards(schedule: Schedule, sharding: Sharding) -> None:
    shards = sharding.shards
    _refuse_repeated(name for shard in shards for name in shard.tensors)
    placed: dict[str, set[int]] = {"reduce-scatter": set(), "all-gather": set()}
    for number, group in enumerate(schedule.groups):
        if group.op is None or not group.shards:
            raise ValueError(f"group {number}: in a sharded schedule, a group must have an op and shards")
        if group.op == "reduce-scatter" and placed["all-gather"]:
            raise ValueError(
                f"group {number}: groups of reduce-scatters must come before those of all-gathers"
            )
        for shard in group.shards:
            if shard >= len(shards):
                raise ValueError(f"group {number}: {shard} is no shard")
            if shard in placed[group.op]:
                raise ValueError(f"group {number}: shard {shard} is in two places")
            placed[group.op].add(shard)
        if any(shards[shard].dtype != group.dtype for shard in group.shards):
            raise ValueError(f"group {number}: its shards are not all {group.dtype}")
        if group.tensors != tuple(name for shard in group.shards for name in shards[shard].tensors):
            raise ValueError(f"group {number}: its tensors differ from those of its shards")
        columns = sum(shards[shard].num_columns for shard in group.shards)
        expected = columns * sharding.column_bytes(group.dtype)
        if group.size_bytes != expected:
            raise ValueError(f"group {number}: size_bytes is {group.size_bytes}, its shards have {expected}")
    for op, numbers in placed.items():
        for number, shard_group in enumerate(shards):
            if (number in numbers) != (shard_group.num_columns > 0):
                columns = shard_group.num_columns
                where = "a group" if number in numbers else "no group"
                raise ValueError(f"{op}: shard {number} has {columns} columns, but is in {where}")
