"""A chart of a what-if of a graph: time over memory, ranks or bandwidth, a line for each policy and value."""

from itertools import product
from pathlib import Path

from pace.view.what_if_charts import COLORS, MARKERS, OURS
from pace.whatif.graphs import GraphCell, GraphGrid, GraphWhatIf

_NAMES = {
    "memory_gb": "memory budget in GB",
    "ranks": "ranks that parameters are sharded over",
    "bandwidth_factor": "bandwidth, times that of the graph",
}
_TITLES = {"memory_gb": "{:g} GB", "ranks": "{} ranks", "bandwidth_factor": "bandwidth x {:g}"}


def draw(result: GraphWhatIf, path: Path) -> None:
    """Draw a result to `path`; its ending chooses the format (PNG, SVG, PDF).

    The horizontal axis is the memory budget if several are given, else the ranks if several are given, else
    the bandwidth. Each value of the others has a panel of its own.
    """
    from matplotlib.figure import Figure

    over = next((name for name in _NAMES if len(getattr(result.grid, name)) > 1), "bandwidth_factor")
    others = [name for name in _NAMES if name != over]
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
        axes.set_xlabel(_NAMES[over])
        axes.set_title(
            ", ".join(
                _TITLES[name].format(value)
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
