"""Job programs from our own plans: schedules of wrappers, and graphs with or without their schedules."""

from collections.abc import Sequence

from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedOperation,
    EnqueuedWait,
    HostThread,
    JobProgram,
    ProcessGroup,
    RankProgram,
)
from pace.documents.schedule import Schedule
from pace.errors import InvalidJobProgram
from pace.order.inputs.job_groups import GivenGroups, RankFile, job_of
from pace.order.inputs.senders import server_group, thread_of_schedule, threads_with_servers


def program_of_plans(
    schedules: Sequence[Schedule],
    graphs: Sequence[CollectiveGraph] = (),
    *,
    groups: GivenGroups | None = None,
) -> JobProgram:
    """Return what a job enqueues that follows these plans.

    Parameters
    ----------
    schedules
        One for each wrapper of a job that has several at once, and one for each different graph.
    graphs
        One graph that all ranks run, or one for each rank.
    groups
        The communicators of groups, by name, where graphs do not say them.

    Raises
    ------
    InvalidJobProgram
        If a schedule's graph is missing, graphs have several names, or do not say which ranks are in a
        group.
    """
    names = sorted({graph.name for graph in graphs})
    if len(names) > 1:
        raise InvalidJobProgram(
            f'"{names[0]}" and "{names[1]}" are not one graph of several ranks: check each by itself, or give'
            " the graphs of all ranks one name"
        )
    planned = {each.profile_sha256: each for each in schedules if each.exchange == "graph"}
    wrappers = [each for each in schedules if each.exchange != "graph"]
    files = {rank: _rank_file(graph, planned.get(graph.sha256)) for rank, graph in enumerate(graphs)}
    if stray := planned.keys() - {graph.sha256 for graph in graphs}:
        raise InvalidJobProgram(
            f"the schedule of the graph {min(stray)[:12]} orders that graph's nodes: give the graph, too"
        )
    if not graphs:
        return _of_wrappers(wrappers)
    job = job_of("the planned graphs", files, groups or {})
    return _with_replicas(job, wrappers) if wrappers else job


def _rank_file(graph: CollectiveGraph, schedule: Schedule | None) -> RankFile:
    """Return the nodes of a graph in their order, or with buckets and in the order of its schedule."""
    order = range(len(graph.nodes)) if schedule is None else schedule.graph_plan.order
    bucket_of = {} if schedule is None else {name: each for each in schedule.groups for name in each.tensors}
    operations: list[EnqueuedOperation] = []
    seen: set[str] = set()
    for number in order:
        node = graph.nodes[number]
        name = node.name if node.collective is not None else node.waits_for
        if name is None:
            continue
        bucket = bucket_of.get(name)
        label = name if bucket is None else bucket.tensors[0]
        key = f"{'wait' if node.collective is None else 'call'} {label}"
        if key in seen:
            continue
        seen.add(key)
        if node.collective is None:
            # The stream of compute waits, not the host.
            operations.append(EnqueuedWait(op="wait", operation=label, stream="default"))
            continue
        call = node.collective
        size_bytes = call.input_bytes if bucket is None else bucket.size_bytes
        operations.append(
            EnqueuedCollective(
                op=call.op,
                group=call.communicator,
                name=label,
                size_bytes=None if call.op == "all-to-all" else size_bytes,
                dtype=call.dtype,
            )
        )
    used = {operation.group for operation in operations if isinstance(operation, EnqueuedCollective)}
    sizes: dict[str, int | None] = {
        communicator.name: communicator.ranks
        for communicator in graph.communicators
        if communicator.name in used
    }
    return RankFile(threads=(HostThread(operations=tuple(operations)),), group_sizes=sizes)


def _names(wrappers: Sequence[Schedule]) -> list[str]:
    return ["PACE"] if len(wrappers) == 1 else [f"PACE {number}" for number in range(1, len(wrappers) + 1)]


def _of_wrappers(wrappers: Sequence[Schedule]) -> JobProgram:
    """Return a job whose ranks have these wrappers at once."""
    num_workers = max((each.sharding.workers for each in wrappers if each.sharding is not None), default=2)
    num_workers = max(num_workers, 2)
    workers = tuple(range(num_workers))
    groups: list[ProcessGroup] = []
    common: list[HostThread] = []
    of_rank: dict[int, list[HostThread]] = {rank: [] for rank in workers}
    for name, schedule in zip(_names(wrappers), wrappers, strict=True):
        if schedule.exchange == "servers":
            first = len(of_rank)
            servers = range(first, first + schedule.placement.exchange.servers)
            groups.append(server_group(name, (*workers, *servers)))
            for rank, threads in threads_with_servers(name, schedule, workers, servers).items():
                of_rank.setdefault(rank, []).extend(threads)
        else:
            groups.append(ProcessGroup(name=name, communicators=(workers,)))
            common.append(thread_of_schedule(name, schedule))
    if len(of_rank) == num_workers:
        programs = [RankProgram(ranks=workers, threads=tuple(common))]
    else:
        programs = [
            RankProgram(ranks=(rank,), threads=(*(common if rank < num_workers else ()), *threads))
            for rank, threads in of_rank.items()
        ]
    return JobProgram(name="the planned job", groups=tuple(groups), programs=tuple(programs))


def _with_replicas(job: JobProgram, wrappers: Sequence[Schedule]) -> JobProgram:
    """Return two replicas of a job, joined by the wrappers' all-reduces."""
    if any(each.exchange == "servers" for each in wrappers):
        raise InvalidJobProgram(
            "a schedule with servers does not fit the replicas of a graph: give one with all-reduces"
        )
    size = 1 + max(rank for program in job.programs for rank in program.ranks)
    names = _names(wrappers)
    threads = tuple(thread_of_schedule(name, each) for name, each in zip(names, wrappers, strict=True))
    groups = [
        ProcessGroup(
            name=group.name,
            communicators=(
                *group.communicators,
                *(tuple(rank + size for rank in ranks) for ranks in group.communicators),
            ),
        )
        for group in job.groups
    ]
    groups += [
        ProcessGroup(name=name, communicators=tuple((rank, rank + size) for rank in range(size)))
        for name in names
    ]
    programs = [
        RankProgram(
            ranks=(*program.ranks, *(rank + size for rank in program.ranks)),
            threads=(*program.threads, *threads),
        )
        for program in job.programs
    ]
    return JobProgram(name="the planned job", groups=tuple(groups), programs=tuple(programs))
