"""What commands share for parameter servers: the cluster that options describe, and plans shown to people."""

from functools import partial
from pathlib import Path

from rich.console import Console

from pace.cli.console import make_table
from pace.documents.cluster import Cluster, load_cluster
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.push_pull_schedule import PushPullSchedule
from pace.errors import InvalidOptions

SHOWN_SEGMENTS = 60


def cluster_of(profile: Profile, file: Path | None, servers: int | None, *, colocated: bool) -> Cluster:
    """Return the cluster of a file, of a profile that was measured with one, or of `servers` servers."""
    from pace.parameter_server.clusters import cluster_for

    if file is not None:
        if servers is not None or colocated:
            raise InvalidOptions("--cluster says how many servers there are and where: leave the rest out")
        return load_cluster(file)
    if servers is not None:
        return cluster_for(profile, servers=servers, colocated=colocated)
    if isinstance(profile.allreduce, PushPull) and not colocated:
        return Cluster(name=profile.name, exchange=profile.allreduce)
    raise InvalidOptions("--exchange ps needs --servers or --cluster")


def describe_parts(schedule: PushPullSchedule) -> str:
    """Say in how many parts the gradients travel, and how small those are."""
    sizes = sorted(segment.size_bytes for segment in schedule.segments)
    if not sizes:
        return "none: nothing travels"
    least = schedule.cluster.exchange.min_partition_bytes
    half = sizes[len(sizes) // 2]
    told = f"{len(sizes):,}, the smallest of {sizes[0]:,} bytes, half of them of {half:,} or more"
    return f"{told}; no group is cut below {least:,}" if least else told


def describe_exchange(profile: Profile, schedule: PushPullSchedule, console: Console) -> None:
    """Print a plan for people: predicted times, servers, partitions and segments."""
    predicted, exchange = schedule.predicted, schedule.cluster.exchange
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    print_line(
        f"[bold]{profile.name}[/bold]: {len(profile.gradients)} gradients, {profile.workers} workers, "
        f"{exchange.servers} servers{' on their hosts' if exchange.colocated else ''}"
    )
    print_line(
        f"iteration   {predicted.iteration_s * 1e3:.3f} ms predicted; "
        f"{predicted.ideal_iteration_s * 1e3:.3f} ms at best with these segments; "
        f"compute alone {predicted.compute_s * 1e3:.3f} ms"
    )
    print_line(
        f"optimality  within {max(predicted.gap, 0.0) * 100:.2g} % of what any partition and order can do "
        f"({predicted.lower_bound_s * 1e3:.3f} ms)"
    )
    print_line(
        f"plan        {len(schedule.groups)} groups in {len(schedule.segments)} segments of at most "
        f"{schedule.execution.max_segment_bytes:,} bytes, {schedule.solver.order} order "
        f"(delta0 is {schedule.solver.suggested_partition_bytes:,.0f} bytes)"
    )
    print_line(f"parts       {describe_parts(schedule)}")
    print_line(f"fusion      {schedule.solver.fusion}: {schedule.solver.method}")
    print_line("")
    columns = ("priority", "group", "bytes", "server", "push ms", "pulled ms", "needed ms", "gradients")
    table = make_table(*columns, left=("gradients",))
    for segment in schedule.segments[:SHOWN_SEGMENTS]:
        group = schedule.groups[segment.group]
        first, *rest = group.gradients
        times = (segment.push_start_s, segment.pull_end_s, predicted.iteration_s - group.tail_s)
        table.add_row(
            str(segment.priority),
            str(segment.group),
            f"{segment.size_bytes:,}",
            str(segment.link),
            *(f"{seconds * 1e3:.3f}" for seconds in times),
            first + (f" +{len(rest)}" if rest else ""),
        )
    console.print(table)
    if len(schedule.segments) > SHOWN_SEGMENTS:
        print_line(f"{len(schedule.segments) - SHOWN_SEGMENTS:,} more segments: --json prints them")
