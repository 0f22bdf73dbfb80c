"""The predicted window of a schedule of push and pull as a chart: a worker's compute and connections."""

from pathlib import Path
from typing import TYPE_CHECKING

from pace.documents.profile import Profile
from pace.documents.push_pull_schedule import PushPullSchedule
from pace.view.schedule_chart import (
    COLORS,
    DIGIT_IN,
    LABEL_PT,
    MILLISECONDS,
    draw_bounds,
    draw_ops,
    is_dark,
    save_figure,
)
from pace.view.timeline import lanes_of, op_times_after

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_exchange(profile: Profile, schedule: PushPullSchedule, path: Path) -> None:
    """Draw the predicted window of one worker to `path`; its ending chooses the format (PNG, SVG, PDF).

    Needs matplotlib (``pace[plot]``). Each server has two rows, for pushes to it and pulls from it; segments
    of one group share a color and a number.
    """
    from matplotlib.figure import Figure

    back_s = [group.ready_s for group in schedule.groups]
    for segment in schedule.segments:
        back_s[segment.group] = max(back_s[segment.group], segment.pull_end_s)
    times = op_times_after(
        profile,
        {name: back for group, back in zip(schedule.groups, back_s, strict=True) for name in group.gradients},
    )
    lanes = lanes_of(profile, times)
    predicted = schedule.predicted
    end_ms = max(predicted.iteration_s, predicted.compute_s) * MILLISECONDS * 1.01 or 1.0
    servers = range(schedule.cluster.exchange.servers)
    rows = [
        *lanes.names,
        *(f"{way} server {server}" for server in servers for way in ("push to", "pull from")),
    ]
    figure = Figure(figsize=(12, 2.2 + 0.5 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, end_ms)
    draw_ops(axes, profile, times, lanes, end_ms)
    _draw_messages(axes, schedule, len(lanes.names), inches_per_ms=10.8 / end_ms)
    draw_bounds(axes, predicted)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.35, -0.5)
    axes.set_title(
        f"{profile.name}: {predicted.iteration_s * MILLISECONDS:.1f} ms predicted, {predicted.gap:.1%} over "
        f"the bound; {len(schedule.groups)} groups in {len(schedule.segments)} segments",
        loc="left",
    )
    save_figure(figure, axes, path)


def _draw_messages(axes: "Axes", schedule: PushPullSchedule, first: int, *, inches_per_ms: float) -> None:
    for segment in schedule.segments:
        color, text = COLORS[segment.group % len(COLORS)], str(segment.group)
        spans = ((segment.push_start_s, segment.push_end_s), (segment.pull_start_s, segment.pull_end_s))
        for way, (start_s, end_s) in enumerate(spans):
            row = first + 2 * segment.link + way
            start_ms, width_ms = start_s * MILLISECONDS, (end_s - start_s) * MILLISECONDS
            axes.barh(row, width_ms, left=start_ms, height=0.7, color=color, edgecolor="white", linewidth=0.4)
            if width_ms > 1.3 * DIGIT_IN * len(text) / inches_per_ms:
                ink = "white" if is_dark(color) else "black"
                middle_ms = start_ms + width_ms / 2
                axes.text(middle_ms, row, text, color=ink, ha="center", va="center", fontsize=LABEL_PT)
