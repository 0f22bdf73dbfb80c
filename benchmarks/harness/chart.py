"""The record as a picture: every contender's iteration over the bound, a panel for each model and W."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import BY_NAME, FRAMEWORKS, HSDP
from benchmarks.harness.report import settings_of
from benchmarks.harness.results import SettingResult

_PEERS = ("#9e9e9e", "#616161", "#bcaaa4", "#8d6e63", "#d7ccc8", "#b0bec5")
# Blue over torch, green over Horovod, orange in two halves, in the contenders' order.
_OURS = (
    *("#0d47a1", "#1976d2", "#7986cb", "#64b5f6", "#bbdefb"),
    *("#00695c", "#26a69a", "#b2dfdb"),
    *("#e65100", "#ffb74d"),
)
# Brown and pink in the loops of frameworks, PACE in the darker one of each.
_FRAMEWORKS = ("#d7a98c", "#795548", "#f48fb1", "#ad1457")
# Purple over replicas of shards.
_HSDP = ("#ce93d8", "#9c27b0", "#4a148c")


def draw(record: dict[str, Any], path: Path) -> None:
    """Write the chart as PNG or whatever the path's ending says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = settings_of(record)
    models = list(dict.fromkeys(setting.model for setting in settings))
    workers = sorted({setting.workers for setting in settings})
    colours = _colours()
    figure, axes = plt.subplots(
        len(workers),
        len(models),
        figsize=(max(4.2 * len(models), 10.0), 3.0 * len(workers) + 0.8),
        squeeze=False,
        sharey=True,
    )
    shown: dict[str, Any] = {}
    for row, count in zip(axes, workers, strict=True):
        for axis, model in zip(row, models, strict=True):
            here = [s for s in settings if s.model == model and s.workers == count]
            axis.set_visible(bool(here))
            shown |= _panel(axis, sorted(here, key=lambda s: s.ratio), colours)
            axis.set_title(f"{model}, {count} workers", fontsize=9)
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
    figure.tight_layout(rect=(0, 0.09 if len(workers) == 1 else 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _colours() -> dict[str, str]:
    sharded = [contender.name for contender in HSDP]
    framed = [contender.name for contender in FRAMEWORKS]
    names = [name for name in BY_NAME if name not in (*sharded, *framed)]
    ours = [name for name in names if name.startswith("pace")]
    others = [name for name in names if name not in ours]
    lists = ((ours, _OURS), (others, _PEERS), (framed, _FRAMEWORKS), (sharded, _HSDP))
    return {name: colour for each, colours in lists for name, colour in zip(each, colours, strict=True)}


def _panel(axis: Any, settings: Sequence[SettingResult], colours: dict[str, str]) -> dict[str, Any]:
    """Draw one model at one number of workers; return a handle for each contender shown."""
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
                color=colours[contender.name],
                yerr=contender.spread * contender.iteration_s / contender.bound_s,
                error_kw={"elinewidth": 0.6},
            )
            handles[contender.name] = bar
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(settings)), [f"{setting.ratio:g}" for setting in settings])
    axis.tick_params(labelsize=8)
    return handles
