"""A record as a picture: every contender's iteration over the bound, a panel for each model and layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import BY_NAME
from benchmarks.harness.report import settings_of
from benchmarks.harness.results import SettingResult


def draw(record: dict[str, Any], path: Path) -> None:
    """Write the chart as PNG or whatever the path's ending says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = settings_of(record)
    models = list(dict.fromkeys(setting.model for setting in settings))
    layouts = list(dict.fromkeys(setting.layout for setting in settings))
    figure, axes = plt.subplots(
        len(layouts),
        len(models),
        figsize=(max(4.2 * len(models), 10.0), 3.0 * len(layouts) + 0.8),
        squeeze=False,
        sharey=True,
    )
    shown: dict[str, Any] = {}
    for row, layout in zip(axes, layouts, strict=True):
        for axis, model in zip(row, models, strict=True):
            here = [s for s in settings if s.model == model and s.layout == layout]
            axis.set_visible(bool(here))
            shown |= _panel(axis, sorted(here, key=lambda s: (s.ratio, not s.pacing_bytes_per_s)))
            axis.set_title(f"{model}, {layout}", fontsize=9)
    for row in axes:
        row[0].set_ylabel("iteration / bound")
    for axis in axes[-1]:
        axis.set_xlabel("communication / compute")
    in_order = [name for name in BY_NAME if name in shown]
    figure.legend(
        [shown[name] for name in in_order],
        [BY_NAME[name].label for name in in_order],
        loc="lower center",
        ncols=min(len(in_order), 6),
        fontsize=8,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0.09 if len(layouts) == 1 else 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, settings: Sequence[SettingResult]) -> dict[str, Any]:
    """Draw one model on one layout; return a handle for each contender shown."""
    handles: dict[str, Any] = {}
    for place, setting in enumerate(settings):
        counted = [contender for contender in setting.contenders if contender.counts]
        width = 0.85 / max(len(counted), 1)
        for at, contender in enumerate(counted):
            left = place - 0.425 + at * width
            bar = axis.bar(
                left,
                contender.iteration_s / contender.bound_s,
                width,
                align="edge",
                color=BY_NAME[contender.name].color,
                yerr=contender.spread * contender.iteration_s / contender.bound_s,
                error_kw={"elinewidth": 0.6},
            )
            handles[contender.name] = bar
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(
        range(len(settings)), [f"{s.ratio:g}{', paced' if s.pacing_bytes_per_s else ''}" for s in settings]
    )
    axis.tick_params(labelsize=8)
    return handles
