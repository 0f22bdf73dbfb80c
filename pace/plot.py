"""The predicted window as a chart: compute and network over time, groups in colours, bounds marked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pace.profile import Profile
from pace.schedule import Schedule
from pace.timeline import Lanes, OpTimes, lanes_of, op_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MILLISECONDS = 1e3
BACKWARD, FORWARD = "#8d99ae", "#c9d1dc"
# A label needs about this share of the window to be readable.
LABEL_SHARE = 0.02


def plot(profile: Profile, schedule: Schedule, path: Path) -> None:
    """Draw the predicted window to `path`; its ending chooses the format (PNG, SVG, PDF).

    Needs matplotlib (``pace[plot]``). Segments of one group share a colour; a group of the certificate
    has a dark edge, and a line joins each segment to the moment when its group was ready.
    """
    from matplotlib.figure import Figure

    times = op_times(profile, schedule)
    lanes = lanes_of(profile, times)
    figure = Figure(figsize=(12, 2.2 + 0.5 * (len(lanes.names) + 1)), layout="constrained")
    axes = figure.add_subplot()
    _draw_ops(axes, profile, times, lanes)
    _draw_segments(axes, schedule, len(lanes.names))
    _draw_bounds(axes, schedule)
    axes.set_yticks(range(len(lanes.names) + 1), [*lanes.names, "network"])
    axes.invert_yaxis()
    axes.set_xlim(0, schedule.predicted.iteration_s * MILLISECONDS * 1.01)
    axes.set_xlabel("ms from the start of the backward pass")
    axes.set_title(
        f"{profile.name}: {schedule.predicted.iteration_s * MILLISECONDS:.1f} ms predicted, "
        f"{len(schedule.groups)} groups in {len(schedule.segments)} segments",
        loc="left",
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=150)


def _draw_ops(axes: "Axes", profile: Profile, times: OpTimes, lanes: Lanes) -> None:
    lane = np.array(lanes.of_op, dtype=int)
    after_wait = _after_any_wait(profile)
    for number in range(len(lanes.names)):
        for chosen, colour, label in (
            (~after_wait, BACKWARD, "compute before any wait"),
            (after_wait, FORWARD, "compute after a wait"),
        ):
            picked = (lane == number) & chosen
            starts = times.starts_s[picked] * MILLISECONDS
            widths = (times.ends_s - times.starts_s)[picked] * MILLISECONDS
            axes.broken_barh(
                list(zip(starts, widths, strict=True)),
                (number - 0.35, 0.7),
                facecolors=colour,
                edgecolor="white",
                linewidth=0.2,
                label=label if number == 0 else None,
            )


def _after_any_wait(profile: Profile) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    after = np.array([bool(op.waits_for) for op in profile.ops])
    for number in profile.graph.order:
        after[number] |= any(after[before] for before in profile.graph.predecessors[number])
    return after


def _draw_segments(axes: "Axes", schedule: Schedule, lane: int) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]  # listed colormaps have it
    critical = set(schedule.certificate.groups)
    for segment in schedule.segments:
        group = schedule.groups[segment.group]
        start = segment.start_s * MILLISECONDS
        width = (segment.end_s - segment.start_s) * MILLISECONDS
        axes.barh(
            lane,
            width,
            left=start,
            height=0.7,
            color=colours[segment.group % len(colours)],
            edgecolor="black" if segment.group in critical else "white",
            linewidth=1.0 if segment.group in critical else 0.3,
        )
        if width > LABEL_SHARE * schedule.predicted.iteration_s * MILLISECONDS:
            axes.text(start + width / 2, lane, str(segment.group), ha="center", va="center", fontsize=9)
        axes.plot([group.ready_s * MILLISECONDS] * 2, [lane - 0.5, lane - 0.35], color="black", linewidth=0.6)


def _draw_bounds(axes: "Axes", schedule: Schedule) -> None:
    predicted = schedule.predicted
    for seconds, style, label in (
        (predicted.compute_s, ":", f"compute alone, {predicted.compute_s * MILLISECONDS:.1f} ms"),
        (
            predicted.lower_bound_s,
            "--",
            f"no schedule is faster, {predicted.lower_bound_s * MILLISECONDS:.1f} ms",
        ),
        (predicted.iteration_s, "-", f"this schedule, {predicted.iteration_s * MILLISECONDS:.1f} ms"),
    ):
        axes.axvline(seconds * MILLISECONDS, color="#b0413e", linestyle=style, linewidth=1.2, label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=5, frameon=False, fontsize=8)
