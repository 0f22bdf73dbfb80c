"""Job programs from schedules: what the runtime of each wrapper sends, in the schedule's order.

Each schedule is a wrapper with a thread, a stream and a process group of its own. All its ranks do the same,
so two of them stand for any number. Two iterations are checked: gradients of the second need the sums of the
first. A graph beside schedules is training in ``fully_shard`` whose replicas these schedules join (HSDP).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pace.documents.order.job_program import (
    CollectiveKind,
    EnqueuedCollective,
    EnqueuedOperation,
    EnqueuedTransfer,
    EnqueuedWait,
    HostThread,
    ProcessGroup,
)
from pace.documents.schedule import Schedule, Segment

ITERATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A collective that a wrapper's thread sends; `needs` are calls, by number, that must end before."""

    op: CollectiveKind
    label: str
    size_bytes: int
    dtype: str
    needs: tuple[int, ...] = ()


def sender_thread(name: str, calls: Sequence[PlannedCall], max_in_flight: int) -> HostThread:
    """Return the thread that sends calls in their order, each once what it needs has ended."""
    operations: list[EnqueuedOperation] = []
    for iteration in range(ITERATIONS):
        labels = [f"{call.label} of iteration {iteration}" for call in calls]
        if iteration and calls:
            operations.append(EnqueuedWait(op="wait", group=name))
        for number, call in enumerate(calls):
            # Calls of one communicator end in their order, so the last one that is needed is enough.
            before = {number - max_in_flight, max(call.needs, default=-1)}
            operations += [
                EnqueuedWait(op="wait", operation=labels[each]) for each in sorted(before) if each >= 0
            ]
            operations.append(
                EnqueuedCollective(
                    op=call.op,
                    group=name,
                    name=labels[number],
                    size_bytes=call.size_bytes,
                    dtype=call.dtype,
                    stream=name,
                )
            )
    return HostThread(name=name, operations=tuple(operations))


def thread_of_schedule(name: str, schedule: Schedule) -> HostThread:
    """Return what a wrapper sends by a schedule of all-reduces, or of reduce-scatters and all-gathers."""
    order = sorted(schedule.transfers, key=lambda segment: (segment.priority, segment.group))
    scatters: dict[int, list[int]] = {}
    for number, segment in enumerate(order):
        if segment.op == "reduce-scatter":
            for shard in schedule.groups[segment.group].shards:
                scatters.setdefault(shard, []).append(number)
    behind_norm = schedule.sharding is not None and schedule.sharding.norm is not None
    every = [number for numbers in scatters.values() for number in numbers]
    calls = []
    for segment in order:
        group = schedule.groups[segment.group]
        needs: list[int] = []
        if segment.op == "all-gather":
            needs = every if behind_norm else [n for shard in group.shards for n in scatters.get(shard, ())]
        calls.append(
            PlannedCall(
                op=segment.op,  # type: ignore[arg-type]  # pushes and pulls are below
                label=_label(segment),
                size_bytes=segment.size_bytes,
                dtype=group.dtype,
                needs=(max(needs),) if needs else (),
            )
        )
    return sender_thread(name, calls, max(schedule.execution.max_in_flight, 1))


def threads_with_servers(
    name: str, schedule: Schedule, workers: Sequence[int], servers: Sequence[int]
) -> dict[int, tuple[HostThread, ...]]:
    """Return what workers and servers do. A server sums segments in any order, and answers all workers."""
    pushes = sorted(schedule.of_op("push"), key=lambda push: (push.priority, push.group))
    pulled = {(pull.group, pull.offset_bytes): pull.size_bytes for pull in schedule.of_op("pull")}
    room = max(schedule.execution.max_in_flight, 1)
    threads: dict[int, tuple[HostThread, ...]] = {}
    for worker in workers:
        operations: list[EnqueuedOperation] = []
        for iteration in range(ITERATIONS):
            if iteration and pushes:
                operations.append(EnqueuedWait(op="wait", group=name))
            on_link: dict[int, list[str]] = {}
            for tag, push in enumerate(pushes):
                sent = on_link.setdefault(push.link, [])
                if len(sent) >= room:
                    operations.append(EnqueuedWait(op="wait", operation=sent[-room]))
                server = servers[push.link // 2]
                sent.append(f"{_label(push)} of iteration {iteration}")
                operations += [
                    _transfer("send", name, server, tag, push.size_bytes, sent[-1]),
                    _transfer("recv", name, server, tag, pulled[push.group, push.offset_bytes]),
                ]
        threads[worker] = (HostThread(name=name, operations=tuple(operations)),)
    for server in servers:
        threads[server] = tuple(
            _summing(f"{name}, {_label(push)}", name, tag, push, pulled, workers)
            for tag, push in enumerate(pushes)
            if servers[push.link // 2] == server
        )
    return threads


def _summing(
    thread: str,
    group: str,
    tag: int,
    push: Segment,
    pulled: dict[tuple[int, int], int],
    workers: Sequence[int],
) -> HostThread:
    operations: list[EnqueuedOperation] = []
    for iteration in range(ITERATIONS):
        names = [f"{thread} from rank {worker}, iteration {iteration}" for worker in workers]
        operations += [
            _transfer("recv", group, worker, tag, push.size_bytes, named)
            for worker, named in zip(workers, names, strict=True)
        ]
        operations += [EnqueuedWait(op="wait", operation=named) for named in names]
        size_bytes = pulled[push.group, push.offset_bytes]
        operations += [_transfer("send", group, worker, tag, size_bytes) for worker in workers]
    return HostThread(name=thread, operations=tuple(operations))


def _transfer(
    op: str, group: str, peer: int, tag: int, size_bytes: int, name: str | None = None
) -> EnqueuedTransfer:
    return EnqueuedTransfer.model_validate(
        {"op": op, "group": group, "peer": peer, "tag": tag, "size_bytes": size_bytes, "name": name}
    )


def _label(segment: Segment) -> str:
    return f"{segment.op} of group {segment.group} at {segment.offset_bytes}"


def server_group(name: str, ranks: Sequence[int]) -> ProcessGroup:
    """Return the group of connections to servers: transfers wait for nothing but one another."""
    return ProcessGroup(name=name, communicators=(tuple(ranks),), backend="gloo")
