"""Charts of a what-if run: throughput, scaling efficiency and speed-up, in panels."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pace.whatif.grid import AXES
from pace.whatif.results import Cell, WhatIf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "bandwidth_gbps": "bandwidth in Gbit/s",
    "workers": "workers",
    "latency_s": "latency of a message in s",
    "compute_speedup": "compute speed-up",
    "batch": "batch on each worker",
    "compression": "compression",
    "algorithm": "all-reduce",
}
MOST_PANELS = 6
# Okabe and Ito's colors, told apart by most eyes; ours is the darkest.
COLORS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#999999", "#F0E442", "#8C564B", "#7F7FBF")
OURS = {"pace": "#000000", "paper": "#0072B2"}
MARKERS = "o^svDPX*<>"


def charts(result: WhatIf) -> "Iterator[tuple[str, Figure]]":
    """Yield a title and a figure for every combination of the axes that a figure cannot show.

    A figure's horizontal axis is the bandwidth, or else the numeric axis with most values; its panels are the
    values of the next axis. Needs matplotlib (``pace-scheduler[plot]``).
    """
    varied = list(result.grid.varied())
    numeric = [axis for axis in varied if axis != "algorithm"]
    numeric.sort(key=lambda axis: (axis != "bandwidth_gbps", -len(getattr(result.grid, axis))))
    horizontal = numeric[0] if numeric else None
    rest = [axis for axis in varied if axis != horizontal]
    rest.sort(key=lambda axis: (axis != "workers", -len(getattr(result.grid, axis))))
    panels = rest[0] if rest else None
    outer = rest[1:]
    figures: dict[tuple[object, ...], list[Cell]] = {}
    for cell in result.cells:
        figures.setdefault(tuple(getattr(cell.scenario, axis) for axis in outer), []).append(cell)
    for values, cells in figures.items():
        title = ", ".join(f"{LABELS[axis]} {_show(value)}" for axis, value in zip(outer, values, strict=True))
        yield title, _figure(result, cells, horizontal, panels, title)


def plot(result: WhatIf, path: Path) -> None:
    """Draw the first of ``charts`` to `path`; its ending chooses the format (PNG, SVG, PDF)."""
    _, figure = next(charts(result))
    figure.savefig(path, dpi=150)


def as_svg(figure: "Figure") -> str:
    """Return a figure as an SVG element, the same text for the same figure."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "pace", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figure(
    result: WhatIf, cells: list[Cell], horizontal: str | None, panels: str | None, title: str
) -> "Figure":
    from matplotlib.figure import Figure

    in_panel: dict[object, list[Cell]] = {}
    for cell in cells:
        in_panel.setdefault(getattr(cell.scenario, panels) if panels else None, []).append(cell)
    shown = list(in_panel)[:MOST_PANELS]
    figure = Figure(figsize=(3.4 * len(shown) + 1.6, 8.2), layout="constrained")
    grid = figure.subplots(3, len(shown), squeeze=False, sharex=horizontal is not None, sharey="row")
    rows = (
        ("throughput", f"{result.unit}/s"),
        ("scaling_efficiency", "scaling efficiency"),
        ("speedup", f"speed-up over {result.grid.baseline_policy}"),
    )
    for column, value in enumerate(shown):
        for row, (number, label) in enumerate(rows):
            axes = grid[row, column]
            _draw(axes, in_panel[value], horizontal, number, result.grid.policies)
            if column == 0:
                axes.set_ylabel(label)
            if number == "speedup":
                axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        if panels:
            grid[0, column].set_title(f"{LABELS[panels]}: {_show(value)}", fontsize=10)
        if horizontal:
            grid[2, column].set_xlabel(LABELS[horizontal])
    for row in (0, 1):  # after all panels are drawn, for setting a limit ends their common scaling
        grid[row, 0].set_ylim(bottom=0)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    left_out = len(in_panel) - len(shown)
    note = f" ({left_out} more values of {LABELS[str(panels)]} not drawn)" if left_out else ""
    figure.suptitle(
        " · ".join(part for part in (result.profile.name, title) if part) + note, x=0.01, ha="left"
    )
    return figure


def _draw(
    axes: "Axes", cells: list[Cell], horizontal: str | None, number: str, policies: tuple[str, ...]
) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    others = [policy for policy in policies if policy not in OURS]
    for at, policy in enumerate(policies):
        mine = [cell for cell in cells if cell.policy == policy]
        ours = policy in OURS
        color = OURS[policy] if ours else COLORS[others.index(policy) % len(COLORS)]
        heights = [getattr(cell, number) for cell in mine]
        if horizontal is None:
            axes.bar(at, heights[0], color=color, label=policy)
            continue
        points = sorted(
            zip((getattr(cell.scenario, horizontal) for cell in mine), heights, strict=True),
            key=lambda point: point[0],
        )
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=color,
            marker=MARKERS[at % len(MARKERS)],
            markersize=4,
            markevery=max(len(points) // 12, 1),
            linewidth=2.0 if ours else 1.3,
            label=policy,
            zorder=3 if ours else 2,
        )
    if horizontal is None:
        axes.set_xticks([])
    else:
        values = [getattr(cell.scenario, horizontal) for cell in cells]
        if min(values) > 0 and max(values) / min(values) >= 20:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


assert set(LABELS) == set(AXES)
