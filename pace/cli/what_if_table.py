"""What-if answers as a table for people."""

from pace.terminal.console import make_console, make_table
from pace.whatif import WhatIf

SHOWN_POINTS = 60


def show_what_if(result: WhatIf) -> None:
    """Print the points of a grid, and what reaches the target."""
    from pace.view.what_if_charts import LABELS

    console = make_console(width=200)
    axes = result.grid.varied()
    against = result.grid.baseline_policy
    console.print(
        f"{result.profile.name}: {result.unit}/s of all workers, scaling efficiency, speed-up over {against}",
        highlight=False,
    )
    table = make_table(*(LABELS[axis] for axis in axes), *result.grid.policies)
    points = list(result.points())
    for cells in points[:SHOWN_POINTS]:
        fastest = min(cell.iteration_s for cell in cells)
        shown = [
            f"{cell.throughput:.5g}  {cell.scaling_efficiency * 100:3.0f} %  {cell.speedup:.2f}"
            for cell in cells
        ]
        marked = [
            f"[bold]{text}[/bold]" if cell.iteration_s == fastest else text
            for cell, text in zip(cells, shown, strict=True)
        ]
        values = (getattr(cells[0], axis) for axis in axes)
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v) for v in values), *marked)
    console.print(table)
    if len(points) > SHOWN_POINTS:
        console.print(
            f"{len(points) - SHOWN_POINTS:,} more points: --csv or --json prints them", highlight=False
        )
    for answer in result.answers:
        place = ", ".join(
            f"{LABELS[axis]} {getattr(answer, axis)}" for axis in axes if axis != "bandwidth_gbps"
        )
        reached = "no bandwidth" if answer.bandwidth_gbps is None else f"{answer.bandwidth_gbps:.3g} Gbit/s"
        wanted = f"{answer.policy} reaches {answer.target_efficiency * 100:g} % at {reached}"
        console.print(f"{place}: {wanted}" if place else wanted, highlight=False)
