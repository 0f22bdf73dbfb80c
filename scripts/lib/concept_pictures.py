"""Draws the pictures of docs/concepts, for scripts/pictures.

They show schedules, simulated policies and bounds that are computed here.
"""

import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pace import Options, Profile, load_profile, optimize, simulate
from pace.models import with_ratio
from pace.view.window import Window, lay_out, lay_out_policy

FOUR_LAYERS = Path("examples/concepts/four-layers.json")
RESNET50 = Path("examples/profiles/resnet50.json")
BACKWARD, FORWARD, INK, MARK = "#8d99ae", "#c9d1dc", "#1b1f24", "#b0413e"
COLORS = {"4": "#0072b2", "3": "#f0a030", "2": "#117a55", "1": "#c0392b"}
LIGHT = "#f0a030"
MS = 1e3
WIDTH_IN = 9.0
ONE_BUFFER = {"first_bytes": 10**9, "bucket_bytes": 10**9}


def four_layers(latency_s: float = 0.001, seconds_per_byte: float = 1e-9) -> Profile:
    """Return the profile of four layers on a network of this latency and speed."""
    cost = {"kind": "affine", "latency_s": latency_s, "seconds_per_byte": seconds_per_byte}
    return Profile.model_validate(load_profile(FOUR_LAYERS).model_dump() | {"allreduce": cost})


def best(profile: Profile, name: str) -> Window:
    """Return the window of the optimal schedule."""
    return lay_out(profile, optimize(profile), name)


def box(axes: Axes, row: float, start_ms: float, end_ms: float, color: str, text: str) -> None:
    """Draw one op or transfer, with its label if that fits."""
    axes.barh(row, end_ms - start_ms, left=start_ms, height=0.8, color=color, edgecolor="white", linewidth=1)
    if end_ms - start_ms > max(2.5, 1.95 * len(text)):
        ink = INK if color in (BACKWARD, FORWARD, LIGHT) else "white"
        axes.text((start_ms + end_ms) / 2, row, text, ha="center", va="center", color=ink, fontsize=8)


def draw_compute(axes: Axes, profile: Profile, window: Window, row: float) -> None:
    """Draw the row of ops."""
    for number, op in enumerate(profile.ops):
        way, layer = op.name.split("/")
        box(
            axes,
            row,
            window.times.starts_s[number] * MS,
            window.times.ends_s[number] * MS,
            BACKWARD if way == "bwd" else FORWARD,
            f"{way} {layer.removeprefix('layer')}",
        )


def draw_window(axes: Axes, profile: Profile, window: Window, row: float) -> None:
    """Draw a row of ops and below it a row of transfers; mark the end of the window."""
    draw_compute(axes, profile, window, row)
    for transfer in window.transfers:
        layers = sorted(name.removeprefix("layer") for name in window.cargo[transfer.cargo].gradients)
        box(axes, row + 1, transfer.start_s * MS, transfer.end_s * MS, COLORS[layers[0]], "+".join(layers))
    end_ms = window.iteration_s * MS
    axes.plot([end_ms, end_ms], [row - 0.5, row + 1.5], color=MARK, linewidth=1.5)
    axes.text(end_ms + 1, row + 0.5, f"{end_ms:.0f} ms", color=MARK, va="center", fontsize=10)


def draw_windows(profile: Profile, windows: list[Window]) -> Figure:
    """Draw windows below one another on one scale of time."""
    figure = Figure(figsize=(WIDTH_IN, 0.5 + 1.25 * len(windows)), layout="constrained")
    axes = figure.add_subplot()
    rows: list[tuple[float, str]] = []
    for number, window in enumerate(windows):
        row = 3.1 * number
        draw_window(axes, profile, window, row)
        axes.text(0, row - 0.62, window.name, fontsize=10, fontweight="bold", color=INK)
        rows += [(row, "compute"), (row + 1, "network")]
    finish(axes, rows, 1.09 * MS * max(window.iteration_s for window in windows))
    return figure


def finish(axes: Axes, rows: list[tuple[float, str]], end_ms: float) -> None:
    """Name rows and the axis of time."""
    axes.set_yticks([row for row, _ in rows], [name for _, name in rows])
    axes.set_ylim(rows[-1][0] + 0.6, -1.2)
    axes.set_xlim(0, end_ms)
    axes.set_xlabel("ms from the start of the backward pass")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def span(axes: Axes, row: float, start_ms: float, end_ms: float, text: str) -> None:
    """Draw a length of time as an arrow with two heads."""
    arrow = {"arrowstyle": "<->", "color": INK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (start_ms, row), (end_ms, row), arrowprops=arrow)
    axes.text((start_ms + end_ms) / 2, row + 0.12, text, ha="center", va="top", fontsize=9, color=INK)


def iteration() -> Figure:
    """Draw compute alone, with the ready time and the tail of one gradient; then a whole window."""
    profile = four_layers()
    instant = four_layers(latency_s=0, seconds_per_byte=0)
    timing = {
        gradient.name: (ready * MS, tail * MS)
        for gradient, ready, tail in zip(
            profile.gradients, profile.timing.ready_s, profile.timing.tail_s, strict=True
        )
    }
    ready_ms, tail_ms = timing["layer2"]
    compute_ms = profile.timing.compute_s * MS
    figure = Figure(figsize=(WIDTH_IN, 3.2), layout="constrained")
    axes = figure.add_subplot()
    draw_compute(axes, instant, lay_out_policy(instant, "fifo"), 0)
    axes.text(0, -0.62, "Compute alone", fontsize=10, fontweight="bold", color=INK)
    span(axes, 0.7, 0, ready_ms, f"ready time of gradient 2: {ready_ms:.0f} ms")
    span(axes, 0.7, compute_ms - tail_ms, compute_ms, f"tail of gradient 2: {tail_ms:.0f} ms")
    draw_window(axes, profile, best(profile, "PACE"), 3.1)
    axes.text(
        0, 3.1 - 0.62, "The iteration with all-reduces, under PACE", fontsize=10, fontweight="bold", color=INK
    )
    finish(axes, [(0, "compute"), (3.1, "compute"), (4.1, "network")], 138)
    return figure


def simulated(profile: Profile, policy: str, title: str, **knobs: int) -> Window:
    """Return the window under a policy, with a title for the picture."""
    return replace(lay_out_policy(profile, policy, **knobs), name=title)


def overlap() -> Figure:
    """Draw the iteration without overlap, with overlap first come first served, and under PACE."""
    profile = four_layers()
    return draw_windows(
        profile,
        [
            simulated(profile, "ddp", "No overlap: one all-reduce after the backward pass", **ONE_BUFFER),
            simulated(profile, "ddp", "PyTorch DDP: first ready, first sent"),
            best(profile, "PACE: most urgent first, in segments"),
        ],
    )


def fusion() -> Figure:
    """Draw the same layers with high latency: unfused, all in one buffer, and in the best groups."""
    profile = four_layers(latency_s=0.01)
    unfused = lay_out(profile, optimize(profile, Options(fusion="none")), "No fusion")
    return draw_windows(
        profile,
        [
            unfused,
            simulated(profile, "ddp", "One group of all gradients", **ONE_BUFFER),
            best(profile, "The groups that PACE chooses"),
        ],
    )


def certificates() -> Figure:
    """Draw a schedule, and under it the three numbers that prove that it cannot be much faster."""
    profile = four_layers()
    schedule = optimize(profile)
    (proof,) = schedule.proofs
    figure = Figure(figsize=(WIDTH_IN, 3.0), layout="constrained")
    axes = figure.add_subplot()
    draw_window(axes, profile, lay_out(profile, schedule), 0)
    ready_ms, sent_ms = proof.min_ready_s * MS, proof.total_s * MS
    tail_ms, bound_ms = proof.min_tail_s * MS, proof.bound_s * MS
    axes.text(0, -0.62, "The schedule", fontsize=10, fontweight="bold", color=INK)
    layers = sorted(
        name.removeprefix("layer") for group in proof.set for name in schedule.groups[group].tensors
    )
    title = f"The certificate: groups {', '.join(layers)}"
    axes.text(0, 2.9 - 0.62, title, fontsize=10, fontweight="bold", color=INK)
    box(axes, 2.9, 0, ready_ms, FORWARD, f"none is ready: {ready_ms:.0f} ms")
    box(axes, 2.9, ready_ms, ready_ms + sent_ms, "#6a4c93", f"all-reduces of the set: {sent_ms:.0f} ms")
    box(axes, 2.9, bound_ms - tail_ms, bound_ms, FORWARD, f"tail: {tail_ms:.0f}")
    axes.plot([bound_ms, bound_ms], [-0.5, 3.4], color=INK, linewidth=1, linestyle="--")
    axes.text(bound_ms + 1, 2.9, f"{bound_ms:.0f} ms", va="center", fontsize=10, color=INK)
    finish(axes, [(0, "compute"), (1, "network"), (2.9, "bound")], 138)
    return figure


def bounds() -> Figure:
    """Draw iteration times of ResNet50 and their bound over the speed of the network."""
    profile = load_profile(RESNET50)
    ratios = np.linspace(0.1, 3.0, 30)
    profiles = [with_ratio(profile, float(ratio)) for ratio in ratios]
    predicted = [optimize(each).predicted for each in profiles]
    ddp_ms = [simulate(each, ["ddp"])["ddp"].iteration_s * MS for each in profiles]
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(ratios, ddp_ms, color=COLORS["3"], linewidth=2, label="PyTorch DDP (simulated)")
    axes.plot(
        ratios, [each.iteration_s * MS for each in predicted], color=COLORS["4"], linewidth=3, label="PACE"
    )
    bound_ms = np.array([each.lower_bound_s * MS for each in predicted])
    axes.plot(ratios, bound_ms, color=INK, linestyle="--", linewidth=1.2, label="no schedule is faster")
    axes.fill_between(ratios, 0, bound_ms, color="#eef2f7")
    axes.set_xlim(ratios[0], ratios[-1])
    axes.set_ylim(0, 1.05 * max(ddp_ms))
    axes.set_xlabel("time of communication, as a multiple of compute")
    axes.set_ylabel("iteration of ResNet50, ms")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    return figure


def main() -> None:
    """Write every picture to a folder, the same bytes each time."""
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path, help="Folder of the SVG files")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="Also draw PNG files into this folder")
    arguments = parser.parse_args()
    matplotlib.rcParams.update({"svg.hashsalt": "pace", "svg.fonttype": "none"})
    for picture in (iteration, overlap, fusion, certificates, bounds):
        figure = picture()
        for folder, suffix, metadata in (
            (arguments.folder, "svg", {"Date": None}),
            (arguments.png, "png", {}),
        ):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / f"{picture.__name__}.{suffix}", metadata=metadata, dpi=110)
        print(f"drew {picture.__name__}", file=sys.stderr)


if __name__ == "__main__":
    main()
