"""Draws the demo's picture: the window that the schedule predicts above the one that was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Trace = dict[str, Any]


def draw(predicted: Trace, measured: Trace, path: Path) -> None:
    """Write the picture of two Chrome traces as a PNG.

    Parameters
    ----------
    predicted
        With rows of compute and of the network.
    measured
        With rows of the network, from the first send of a step.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True)
    first_send_us = min(each["ts"] for each in _slices(predicted) if "group" in each["args"])
    _draw(above, "predicted", predicted, 0.0)
    _draw(below, "measured", measured, first_send_us)
    below.set_xlabel(
        "ms from the start of the backward pass; the measured window begins at the predicted first send"
    )
    figure.savefig(path, dpi=120)


def _slices(trace: Trace) -> list[dict[str, Any]]:
    return [each for each in trace["traceEvents"] if each["ph"] == "X"]


def _draw(axes: "Axes", title: str, trace: Trace, shift_us: float) -> None:
    names = {
        each["tid"]: each["args"]["name"]
        for each in trace["traceEvents"]
        if each["ph"] == "M" and each["name"] == "thread_name"
    }
    rows = {tid: row for row, tid in enumerate(sorted(names))}
    colors = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]  # not in the stubs
    for each in _slices(trace):
        start_ms, length_ms = (each["ts"] + shift_us) / 1e3, each["dur"] / 1e3
        group = each["args"].get("group")
        color = "lightgray" if group is None else colors[group % len(colors)]
        row = rows[each["tid"]]
        axes.broken_barh([(start_ms, length_ms)], (row - 0.4, 0.8), facecolors=color, edgecolors="white")
        if group is not None:
            axes.text(start_ms + length_ms / 2, row, str(group), ha="center", va="center", clip_on=True)
    axes.set_yticks(list(rows.values()), [names[tid] for tid in rows])
    axes.invert_yaxis()
    axes.set_title(f"{title}: numbers are groups of gradients", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
