"""A chart of a what-if of a graph: time over bandwidth, or over memory, a line for each policy and value."""

from pathlib import Path

from pace.view.what_if_charts import COLORS, MARKERS, OURS
from pace.whatif.graphs import GraphWhatIf


def draw(result: GraphWhatIf, path: Path) -> None:
    """Draw a result to `path`; its ending chooses the format (PNG, SVG, PDF).

    The horizontal axis is the memory budget if several are given, else the bandwidth.
    """
    from matplotlib.figure import Figure

    over_memory = len(result.grid.memory_gb) > 1
    panels = result.grid.bandwidth_factor if over_memory else (result.grid.memory_gb or (None,))
    figure = Figure(figsize=(1 + 5 * len(panels), 4.5), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, panel in zip(every, panels, strict=True):
        shown = [
            cell
            for cell in result.cells
            if (cell.bandwidth_factor if over_memory else cell.memory_gb) == panel
        ]
        xs = sorted({(cell.memory_gb if over_memory else cell.bandwidth_factor) or 0.0 for cell in shown})
        for number, policy in enumerate(result.grid.policies):
            found = {
                (cell.memory_gb if over_memory else cell.bandwidth_factor) or 0.0: cell.iteration_s
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
        bounds = {
            (cell.memory_gb if over_memory else cell.bandwidth_factor) or 0.0: cell.lower_bound_s
            for cell in shown
        }
        axes.plot(xs, [bounds[x] * 1e3 for x in xs], "--", color="0.5", label="no plan is faster")
        axes.set_xlabel("memory budget in GB" if over_memory else "bandwidth, times that of the graph")
        if over_memory:
            axes.set_title(f"bandwidth x {panel:g}")
        elif panel is not None:
            axes.set_title(f"{panel:g} GB")
    every[0].set_ylabel("iteration in ms")
    every[0].legend(frameon=False)
    figure.suptitle(result.graph)
    figure.savefig(path, dpi=150)
