"""What ``pace sync plan`` prints of a sync plan, a delta plan and a reshard plan."""

from functools import partial

from rich.console import Console

from pace.counted import counted
from pace.terminal.console import make_table
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.weight_sync import WeightSync

SHOWN_BUCKETS = 12


def describe_sync(problem: WeightSync, made: SyncPlan, console: Console) -> None:
    """Print buckets, the predicted pause, bounds and other rules."""
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    count = len(problem.receivers)
    print_line(
        f"[bold]{problem.name}[/bold]: {counted(len(problem.tensors), 'tensor')}, {total / 1e6:,.1f} MB, to "
        f"{counted(count, 'receiver')} ({problem.fan_out})"
    )
    print_line(
        f"pause       {made.predicted.pause_s * 1e3:.3f} ms predicted; "
        f"link {made.predicted.link_s * 1e3:.3f} ms, "
        f"receiver's work {made.predicted.work_s * 1e3:.3f} ms"
    )
    print_line(
        f"optimality  within {made.predicted.gap * 100:.1f} % of what any buckets in any order can do "
        f"({made.bound.bound_s * 1e3:.3f} ms)"
    )
    print_line(f"method      {made.method}")
    table = make_table("bucket", "MB", "sent from ms", "to ms", "finished ms", "tensors", left=("tensors",))
    for number, bucket in enumerate(made.buckets[:SHOWN_BUCKETS], start=1):
        names = [part.tensor for part in bucket.parts]
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        table.add_row(
            str(number),
            f"{bucket.size_bytes / 1e6:,.3f}",
            f"{bucket.start_s * 1e3:.3f}",
            f"{bucket.end_s * 1e3:.3f}",
            f"{max(bucket.finished_s) * 1e3:.3f}",
            shown,
        )
    console.print(table)
    if len(made.buckets) > SHOWN_BUCKETS:
        print_line(f"and {len(made.buckets) - SHOWN_BUCKETS} more buckets; --output writes all")
    print_line("Other rules:")
    for rival in made.rivals:
        size = "" if rival.largest_bytes is None else f" of {rival.largest_bytes >> 20} MiB"
        took = "does not fit the credit" if rival.pause_s is None else f"{rival.pause_s * 1e3:.3f} ms"
        print_line(f"  {rival.rule}{size}: {took}")


def describe_deltas(problem: DeltaSync, made: DeltaPlan, console: Console) -> None:
    """Print the rule, when an anchor pays, and what the other rules take."""
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    told = {
        "anchors": "send every version whole",
        "ask": "send what changed; a receiver that missed a version asks for whole weights",
        "wait": f"send what changed, and whole weights every {made.anchor_every} versions",
    }
    print_line(f"[bold]{problem.sync.name}[/bold]: {told[made.rule]}")
    print_line(
        f"mean pause  {made.mean_pause_s * 1e3:.3f} ms; no rule takes less than {made.bound_s * 1e3:.3f} ms"
    )
    print_line(
        f"pauses      {made.anchor_s * 1e3:.3f} ms for whole weights (an anchor), "
        f"{made.delta_s * 1e3:.3f} ms for what changed"
    )
    print_line(f"anchor      is faster when more than {made.anchor_above_bytes / 1e6:,.1f} MB changed")
    table = make_table("rule", "mean pause ms", "mean MB", left=("rule",))
    for choice in made.choices:
        table.add_row(
            told[choice.rule] if choice.rule != "wait" else "periodic anchors",
            f"{choice.mean_pause_s * 1e3:.3f}",
            f"{choice.mean_bytes / 1e6:,.3f}",
        )
    console.print(table)


SHOWN_STREAMS = 24


def describe_reshard(problem: Resharding, made: ReshardPlan, console: Console) -> None:
    """Print streams, the predicted pause, the bound and what proves it."""
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    print_line(
        f"[bold]{problem.name}[/bold]: {counted(len(problem.tensors), 'tensor')}, "
        f"{total / 1e6:,.1f} MB, from "
        f"{counted(len(problem.senders), 'sender')} to "
        f"{counted(len(problem.receivers), 'receiver')}"
    )
    print_line(f"pause       {made.predicted.pause_s * 1e3:.3f} ms predicted")
    print_line(
        f"optimality  within {made.predicted.gap * 100:.1f} % of what any plan can do "
        f"({made.bound.bound_s * 1e3:.3f} ms)"
    )
    proves = {
        "senders": "the links of these senders, whose data no other sender holds:",
        "link": "the link of receiver",
        "work": "the work inside receiver",
    }
    print_line(f"bound       {proves[made.bound.kind]} {', '.join(made.bound.hosts)}")
    table = make_table("sender", "MB", "boxes", "MB/s", "until ms", "receivers", left=("sender", "receivers"))
    for stream in made.streams[:SHOWN_STREAMS]:
        table.add_row(
            stream.sender,
            f"{stream.size_bytes / 1e6:,.3f}",
            str(len(stream.boxes)),
            "fair share" if stream.bytes_per_s is None else f"{stream.bytes_per_s / 1e6:.1f}",
            f"{stream.end_s * 1e3:.3f}",
            " > ".join(stream.receivers),
        )
    console.print(table)
    if len(made.streams) > SHOWN_STREAMS:
        print_line(f"and {len(made.streams) - SHOWN_STREAMS} more streams; --output writes all")
    print_line("Other rules:")
    for rival in made.rivals:
        print_line(f"  {rival.rule}: {rival.pause_s * 1e3:.3f} ms")
