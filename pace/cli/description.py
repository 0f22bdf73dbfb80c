"""A schedule as text for people: predicted times, the proof in words, and every transfer."""

from functools import partial

from rich.console import Console

from pace.cli.graphs.description import describe_graph
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.terminal.console import make_table
from pace.terminal.reporting import counted

SHOWN_SEGMENTS = 120
# So many points of the curve of calls and expected windows are printed.
SHOWN_CALLS = 6


def describe(profile: Profile | CollectiveGraph, schedule: Schedule, console: Console) -> None:
    """Print a schedule of any exchange."""
    if isinstance(profile, CollectiveGraph):
        describe_graph(profile, schedule, console)
        return
    predicted = schedule.predicted
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    print_line(
        f"[bold]{profile.name}[/bold]: {len(profile.gradients)} gradients, {profile.workers} workers"
        f"{_servers(schedule)}"
    )
    print_line(
        f"iteration   {predicted.iteration_s * 1e3:.3f} ms predicted; "
        f"{predicted.ideal_iteration_s * 1e3:.3f} ms {_ideal(schedule)}; "
        f"compute alone {predicted.compute_s * 1e3:.3f} ms"
    )
    print_line(
        f"optimality  within {_percent(predicted.gap)} of what any {_semantics(schedule)} can do "
        f"({predicted.lower_bound_s * 1e3:.3f} ms)"
    )
    if predicted.expected_s is not None:
        stated = profile.load is not None and profile.load.delta is not None
        print_line(
            f"under load  {predicted.expected_s * 1e3:.3f} ms expected with late ranks and calls that take "
            f"longer while compute runs ({'as the profile says' if stated else 'assumed'})"
            + (f"; DDP {predicted.ddp_s * 1e3:.3f} ms" if predicted.ddp_s else "")
        )
        shown = schedule.solver.curve[-SHOWN_CALLS:]
        tried = ", ".join(f"{calls}: {seconds * 1e3:.3f}" for calls, seconds in shown)
        print_line(f"calls       {tried} ms expected under load")
    print_line(f"plan        {_plan(schedule)}")
    if schedule.exchange == "servers":
        print_line(f"segments    {_segments(schedule)}")
        if tables := _tables(profile, schedule):
            print_line(f"tables      {tables}")
    if schedule.sharding is not None and schedule.sharding.norm is not None:
        print_line(f"norm        exchanged at {schedule.sharding.norm.start_s * 1e3:.3f} ms")
    solver = schedule.solver
    if solver.num_programs is not None and solver.programs_s is not None:
        programs = f"{solver.num_programs:,} linear programs by {solver.lp_solver}"
        print_line(f"oracle      {programs}, {solver.programs_s:.3f} s")
    print_line(f"fusion      {solver.fusion}: {solver.method}")
    print_line("")
    _print_transfers(schedule, console)
    if len(schedule.transfers) > SHOWN_SEGMENTS:
        print_line(f"{len(schedule.transfers) - SHOWN_SEGMENTS:,} more transfers: --json prints them")


def _print_transfers(schedule: Schedule, console: Console) -> None:
    many_links = len(schedule.links) > 1
    columns = ["priority", *(["link"] if many_links else []), "op", "group", "bytes"]
    columns += ["ready ms", "start ms", "end ms", "needed ms", "gradients"]
    table = make_table(*columns, left=("op", "link", "gradients"))
    for transfer in schedule.transfers[:SHOWN_SEGMENTS]:
        group = schedule.groups[transfer.group]
        first, *rest = group.tensors
        ready = "" if group.op == "all-gather" else f"{group.ready_s * 1e3:.3f}"
        needed = f"{(schedule.predicted.iteration_s - group.tail_s) * 1e3:.3f}"
        table.add_row(
            str(transfer.priority),
            *([schedule.links[transfer.link]] if many_links else []),
            transfer.op,
            str(transfer.group),
            f"{transfer.size_bytes:,}",
            ready,
            *(f"{seconds * 1e3:.3f}" for seconds in (transfer.start_s, transfer.end_s)),
            "" if group.op == "reduce-scatter" else needed,
            first + (f" +{len(rest)}" if rest else ""),
        )
    console.print(table)


def _servers(schedule: Schedule) -> str:
    if schedule.cluster is None:
        return ""
    exchange = schedule.cluster.exchange
    return f", {counted(exchange.servers, 'server')}{' on their hosts' if exchange.colocated else ''}"


def _ideal(schedule: Schedule) -> str:
    return "at best with these segments" if schedule.exchange == "servers" else "if preemption were free"


def _semantics(schedule: Schedule) -> str:
    if schedule.exchange == "servers":
        return "partition and order"
    if schedule.exchange == "sharded":
        return "sharded schedule"
    return "schedule" if schedule.framework is None else "schedule that stops at a barrier"


def _plan(schedule: Schedule) -> str:
    counted = f"{len(schedule.groups)} groups in {schedule.num_segments} segments"
    if schedule.sharding is not None:
        scatters = len(schedule.groups_of("reduce-scatter"))
        return (
            f"{scatters} reduce-scatters and {len(schedule.groups) - scatters} all-gathers of "
            f"{len(schedule.sharding.shards)} shards, in {schedule.num_segments} segments; "
            f"updates {schedule.sharding.update}"
        )
    if schedule.exchange == "servers":
        return (
            f"{counted} of at most {schedule.execution.max_segment_bytes:,} bytes, "
            f"{schedule.solver.order} order (size by formula: "
            f"{schedule.solver.suggested_partition_bytes:,.0f} bytes)"
        )
    return counted


def _segments(schedule: Schedule) -> str:
    """Say how many segments travel, and how small they are."""
    sizes = sorted(segment.size_bytes for segment in schedule.of_op("push"))
    if not sizes:
        return "none: there is nothing to send"
    least = schedule.placement.exchange.min_partition_bytes
    half = sizes[len(sizes) // 2]
    told = f"{len(sizes):,}, the smallest of {sizes[0]:,} bytes, half of them of {half:,} bytes or more"
    return f"{told}; no group is cut below {least:,} bytes" if least else told


def _tables(profile: Profile, schedule: Schedule) -> str:
    """Say what is sent of embedding tables, and what is not known of them; nothing without tables."""
    ratios = {ratio.gradient: ratio for ratio in schedule.placement.ratios}
    told, known = [], profile.workers
    for gradient in profile.gradients:
        ratio = ratios.get(gradient.name)
        if gradient.touched is not None and ratio is not None:
            told.append(f"{gradient.name}: {ratio.push:.2%} pushed, {ratio.pull:.2%} pulled")
            known = min(known, len(gradient.touched.distinct))
    if known < profile.workers:
        told.append(
            f"pulls are upper estimates, as the profile has the rows of {known} steps together, and "
            f"{profile.workers} workers need those of {profile.workers}"
        )
    if left_out := profile.metadata.get("tables_left_out"):
        told.append(f"not in this plan: {', '.join(left_out)}")
    return "; ".join(told)


def _percent(gap: float) -> str:
    return f"{max(gap, 0.0) * 100:.2g} %" if gap >= 1e-5 else "0 %"
