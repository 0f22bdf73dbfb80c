"""Windows as a chart: compute, network and memory over time, groups in colors, bounds marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pace.counted import counted
from pace.documents.profile import Profile
from pace.documents.schedule import Prediction, Schedule
from pace.view.window import MemoryOverTime, Phase, Window, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MILLISECONDS = 1e3
# The color of each phase, and what the legend says of it.
PHASES: dict[Phase, tuple[str, str]] = {
    "backward": ("#8d99ae", "compute that waits for no gradient"),
    "forward": ("#c9d1dc", "compute that waited for gradients"),
    "collective": ("#e6ccb2", "collectives that no schedule moves"),
    "compute": ("#8d99ae", "compute"),
    "copy": ("#d1495b", "copies into and out of buckets"),
}
GIGABYTES = 1e9
MEMORY_ROWS = 1.6  # height of the panel of memory, in rows
# Neighbors in this order differ in hue and in lightness.
COLORS = (
    *("#0072b2", "#f0a030", "#117a55", "#8ecae6", "#c0392b", "#b8de6f", "#6a4c93", "#f4b6c2"),
    *("#2f4858", "#f6e05e", "#a0522d", "#76d7c4"),
)
LABEL_PT = 8
DIGIT_IN = 0.075  # a digit of that size, with what it needs beside it
# A line parts ops from the one before if they take this share of the window: more lines would cover them.
EDGE_SHARE = 0.005


def plot(profile: Profile, schedule: Schedule, path: Path) -> None:
    """Draw the predicted window to `path`; its ending chooses the format (PNG, SVG, PDF).

    Needs ``pace-scheduler[plot]``. Compute and every link have a row. Segments of one group share a color
    and a number; a triangle of the color marks the moment when the group was ready. Groups of the proof
    have a dark edge.
    """
    window = lay_out(profile, schedule)
    predicted = schedule.predicted
    title = (
        f"{profile.name}: {predicted.iteration_s * MILLISECONDS:.1f} ms predicted, {predicted.gap:z.1%} over "
        f"the bound; {counted(len(schedule.groups), 'group')} in {counted(schedule.num_segments, 'segment')}"
    )
    end_s = max(predicted.iteration_s, predicted.compute_s)
    figure, every = _drawn([(title, window)], end_s)
    _draw_bounds(every[0], predicted)
    _save(figure, every, path)


def plot_windows(shown: Sequence[tuple[str, Window]], path: Path) -> None:
    """Draw several windows with their titles below one another, on one scale of time; see ``plot``.

    Where the memory in use is known, it has a panel below the window.
    """
    end_s = max(window.iteration_s for _, window in shown)
    figure, axes = _drawn(shown, end_s)
    _save(figure, axes, path)


def _drawn(shown: Sequence[tuple[str, Window]], end_s: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    end_ms = end_s * MILLISECONDS * 1.01 or 1.0
    heights: list[float] = []
    for _, window in shown:
        heights.append(len(window.lanes) + len(window.link_rows[0]))
        heights += [MEMORY_ROWS] if window.memory is not None else []
    figure = Figure(figsize=(12, 1.0 + 1.2 * len(shown) + 0.5 * sum(heights)), layout="constrained")
    below = list(figure.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights)[:, 0])
    places = iter(below)
    for title, window in shown:
        axes = next(places)
        axes.set_xlim(0, end_ms)
        rows = [*window.lanes, *window.link_rows[0]]
        _draw_ops(axes, window, end_ms)
        _draw_transfers(axes, window, inches_per_ms=10.8 / end_ms)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.35, -0.5)
        axes.set_title(title, loc="left")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        if window.memory is not None:
            every = [other.memory.in_use_bytes for _, other in shown if other.memory is not None]
            limits = min(int(each.min()) for each in every), max(int(each.max()) for each in every)
            _draw_memory(next(places), window.memory, window.iteration_s, limits)
    below[-1].set_xlabel(f"ms from {shown[-1][1].begins_with}")
    return figure, below


def _draw_memory(axes: "Axes", memory: MemoryOverTime, end_s: float, limits: tuple[int, int]) -> None:
    """Draw the memory in use on an axis without most of what is always in use, which would hide the rest."""
    starts_ms = np.append(memory.starts_s, end_s) * MILLISECONDS
    in_use = np.append(memory.in_use_bytes, memory.in_use_bytes[-1:]) / GIGABYTES
    axes.fill_between(starts_ms, in_use, step="post", color="#b8c4d6", linewidth=0)
    least, top = (limit / GIGABYTES for limit in limits)
    if memory.budget_bytes is not None:
        budget = memory.budget_bytes / GIGABYTES
        top = max(top, budget)
        axes.axhline(budget, color="#b0413e", linestyle="--", linewidth=1.2)
        axes.text(0, budget, " budget", color="#b0413e", va="bottom", fontsize=LABEL_PT)
    room = (top - least) * 0.25 or 0.1 * top or 1.0
    axes.set_ylim(max(0.0, least - room), top + room)
    axes.set_ylabel("GB in use", fontsize=LABEL_PT)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: "Figure", axes: "Sequence[Axes]", path: Path) -> None:
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=LABEL_PT)
    figure.savefig(path, dpi=150)


def _draw_ops(axes: "Axes", window: Window, end_ms: float) -> None:
    lane, times = np.array(window.op_lanes, dtype=int), window.times
    starts_ms, widths_ms = times.starts_s * MILLISECONDS, (times.ends_s - times.starts_s) * MILLISECONDS
    wide = widths_ms > EDGE_SHARE * end_ms
    phases = np.array(window.op_phases)
    known: set[str] = set()
    for number in range(len(window.lanes)):
        for phase, (color, label) in PHASES.items():
            picked = (lane == number) & (phases == phase)
            if not picked.any():
                continue
            axes.broken_barh(
                list(zip(starts_ms[picked], widths_ms[picked], strict=True)),
                (number - 0.35, 0.7),
                facecolors=color,
                linewidth=0,
                label=None if label in known else label,
            )
            known.add(label)
        axes.vlines(
            starts_ms[(lane == number) & wide], number - 0.35, number + 0.35, color="white", linewidth=0.5
        )


def _draw_transfers(axes: "Axes", window: Window, *, inches_per_ms: float) -> None:
    first = len(window.lanes)
    for number, cargo in enumerate(window.cargo):
        if cargo.ready_s is not None:
            color = COLORS[number % len(COLORS)]
            ready_ms = cargo.ready_s * MILLISECONDS
            axes.plot(ready_ms, first - 0.42, "v", color=color, markersize=5, clip_on=False)
    if any(cargo.ready_s is not None for cargo in window.cargo):
        axes.plot([], [], "v", color="0.4", markersize=5, label="a group is ready")
    for number, cargo in enumerate(window.cargo):
        if cargo.label is not None:  # out of sight, for the legend
            axes.barh(first, 0, left=-1, color=COLORS[number % len(COLORS)], label=cargo.name)
    names, row_of = window.link_rows
    labeled_to_ms = dict.fromkeys(range(len(names)), -np.inf)
    ordered = sorted(zip(window.transfers, row_of, strict=True), key=lambda each: each[0].start_s)
    for transfer, row in ordered:
        lane, in_bound = first + row, window.cargo[transfer.cargo].critical
        start_ms = transfer.start_s * MILLISECONDS
        width_ms = (transfer.end_s - transfer.start_s) * MILLISECONDS
        color = COLORS[transfer.cargo % len(COLORS)]
        label = window.cargo[transfer.cargo].label
        text = str(transfer.cargo) if label is None else label
        needed_ms = DIGIT_IN * len(text) / inches_per_ms
        middle_ms = start_ms + width_ms / 2
        fits = width_ms > 1.3 * needed_ms
        axes.barh(
            lane,
            width_ms,
            left=start_ms,
            height=0.7,
            color=color,
            edgecolor="black" if in_bound else "white",
            linewidth=1.2 if in_bound and fits else 0.4,
            zorder=3 if in_bound else 2,
        )
        if fits:
            ink = "white" if is_dark(color) else "black"
            axes.text(middle_ms, lane, text, color=ink, ha="center", va="center", fontsize=LABEL_PT, zorder=4)
        elif label is None and middle_ms - needed_ms / 2 > labeled_to_ms[row]:
            # Below, where nothing stands yet.
            axes.text(middle_ms, lane + 0.38, text, ha="center", va="top", fontsize=LABEL_PT - 1)
            labeled_to_ms[row] = middle_ms + needed_ms / 2
    if any(cargo.critical for cargo in window.cargo):
        axes.barh(
            first,
            0,
            left=-1,  # out of sight, for the legend
            color="white",
            edgecolor="black",
            linewidth=1.2,
            label="groups that make the bound",
        )


def is_dark(color: str) -> bool:
    """Whether text on a color is better white."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def _draw_bounds(axes: "Axes", predicted: Prediction) -> None:
    """Mark when the schedule ends, when no schedule ends earlier, and when compute alone would."""
    # Thin over thick, so that all three are seen where they coincide.
    for seconds, style, width, color, label in (
        (predicted.iteration_s, "-", 3.5, "#e8a0a0", "this schedule"),
        (predicted.lower_bound_s, "--", 1.4, "#b0413e", "no schedule is faster"),
        (predicted.compute_s, ":", 1.4, "black", "compute alone"),
    ):
        axes.axvline(
            seconds * MILLISECONDS,
            color=color,
            linestyle=style,
            linewidth=width,
            label=f"{label}, {seconds * MILLISECONDS:.1f} ms",
            zorder=5,
        )
