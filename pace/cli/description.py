"""A schedule as text for people: predicted times, the proof in words, and every transfer."""

from functools import partial

from rich.console import Console

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.kinds.kind import AnyProblem
from pace.kinds.registry import kind_named
from pace.terminal.console import make_table

SHOWN_SEGMENTS = 120


def describe(problem: AnyProblem, schedule: Schedule, console: Console) -> None:
    """Print a schedule of any kind."""
    kind = kind_named(schedule.exchange)
    print_line = partial(console.print, highlight=False, soft_wrap=True)
    name, colon, size = kind.title(problem, schedule).partition(": ")
    print_line(f"[bold]{name}[/bold]{colon}{size}")
    for label, text in kind.rows(problem, schedule):
        print_line(f"{label:<11} {text}" if label else f"  {text}")
    if isinstance(problem, Profile):
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
