"""What ``pace sync plan`` prints of a reshard plan."""

from functools import partial

from rich.console import Console

from pace.terminal.console import make_table
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding

SHOWN_STREAMS = 24


def describe_reshard(problem: Resharding, made: ReshardPlan, console: Console) -> None:
    """Print streams, the predicted pause, the bound and what proves it."""
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    print_line(
        f"[bold]{problem.name}[/bold]: {len(problem.tensors)} tensors, {total / 1e6:,.1f} MB, from "
        f"{len(problem.senders)} sender{'s' if len(problem.senders) != 1 else ''} to "
        f"{len(problem.receivers)} receiver{'s' if len(problem.receivers) != 1 else ''}"
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
