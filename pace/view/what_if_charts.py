"""Charts of a what-if run: throughput, scaling efficiency and speed-up, in panels; of a graph, its time."""

import io
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from pace.whatif.graphs import GraphCell, GraphGrid, GraphWhatIf
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
        figures.setdefault(tuple(getattr(cell, axis) for axis in outer), []).append(cell)
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
        in_panel.setdefault(getattr(cell, panels) if panels else None, []).append(cell)
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
            zip((getattr(cell, horizontal) for cell in mine), heights, strict=True),
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
        values = [getattr(cell, horizontal) for cell in cells]
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


_GRAPH_AXES = {
    "memory_gb": "memory budget in GB",
    "ranks": "ranks that parameters are sharded over",
    "bandwidth_factor": "bandwidth, times that of the graph",
}
_GRAPH_TITLES = {"memory_gb": "{:g} GB", "ranks": "{} ranks", "bandwidth_factor": "bandwidth x {:g}"}


def plot_graph_what_if(result: GraphWhatIf, path: Path) -> None:
    """Draw a result to `path`; its ending chooses the format (PNG, SVG, PDF).

    The horizontal axis is the memory budget if several are given, else the ranks if several are given, else
    the bandwidth. Each value of the others has a panel of its own.
    """
    from matplotlib.figure import Figure

    over = next((name for name in _GRAPH_AXES if len(getattr(result.grid, name)) > 1), "bandwidth_factor")
    others = [name for name in _GRAPH_AXES if name != over]
    panels = list(product(*(_values(result.grid, name) for name in others)))
    figure = Figure(figsize=(1 + 5 * len(panels), 4.5), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, panel in zip(every, panels, strict=True):
        shown = [cell for cell in result.cells if tuple(getattr(cell, name) for name in others) == panel]
        xs = sorted({_at(cell, over) for cell in shown})
        for number, policy in enumerate(result.grid.policies):
            found = {
                _at(cell, over): cell.iteration_s
                for cell in shown
                if cell.policy == policy and cell.iteration_s is not None and cell.fits
            }
            axes.plot(
                [x for x in xs if x in found],
                [(found[x] or 0.0) * 1e3 for x in xs if x in found],
                marker=MARKERS[number % len(MARKERS)],
                color=OURS.get(policy, COLORS[number % len(COLORS)]),
                label=policy,
            )
        bounds = {_at(cell, over): cell.lower_bound_s for cell in shown}
        axes.plot(xs, [bounds[x] * 1e3 for x in xs], "--", color="0.5", label="no plan is faster")
        axes.set_xlabel(_GRAPH_AXES[over])
        axes.set_title(
            ", ".join(
                _GRAPH_TITLES[name].format(value)
                for name, value in zip(others, panel, strict=True)
                if value is not None and (name != "bandwidth_factor" or value != 1 or len(panels) > 1)
            )
        )
    every[0].set_ylabel("iteration in ms")
    every[0].legend(frameon=False)
    figure.suptitle(result.graph)
    figure.savefig(path, dpi=150)


def _values(grid: GraphGrid, name: str) -> tuple[float | None, ...]:
    """Return the values of an axis; None for the graph's own ranks, or for no memory limit."""
    values: tuple[float, ...] = getattr(grid, name)
    return values or (None,)


def _at(cell: GraphCell, name: str) -> float:
    value: float | None = getattr(cell, name)
    return value or 0.0
