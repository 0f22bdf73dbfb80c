"""Charts and the page of a throughput prediction: throughput with its band, use of links, staleness."""

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pace.version import __version__
from pace.view.what_if_charts import COLORS, as_svg
from pace.view.what_if_page import STYLE, html_table
from pace_servers.documents.prediction import PredictedPoint, ThroughputPrediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = 8
_COARSE = (("cynthia", "Cynthia", ":"), ("closed_network", "closed network", "--"), ("bound", "bound", "-."))


def prediction_figure(prediction: ThroughputPrediction) -> "Figure":
    """Return a figure with a curve for each number of servers and link; needs ``pace-scheduler[plot]``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    rate, use, stale = figure.subplots(1, 3)
    curves: dict[tuple[int, float], list[PredictedPoint]] = {}
    for point in sorted(prediction.points, key=lambda point: point.workers):
        curves.setdefault((point.servers, point.bandwidth_gbps), []).append(point)
    for at, ((servers, gbps), points) in enumerate(list(curves.items())[:MOST_CURVES]):
        color = COLORS[at % len(COLORS)]
        workers = [point.workers for point in points]
        label = f"{servers} server{'s' * (servers > 1)}, {gbps:g} Gbit/s"
        rate.plot(workers, [point.throughput for point in points], color=color, marker="o", label=label)
        low, high = [point.low for point in points], [point.high for point in points]
        rate.fill_between(workers, low, high, color=color, alpha=0.25, linewidth=0)
        if len(curves) == 1:
            for field, name, style in _COARSE:
                heights = [getattr(point.coarse, field) for point in points]
                rate.plot(workers, heights, color="0.5", linestyle=style, linewidth=1, label=name)
        busiest = [max((link.utilization for link in point.links), default=0.0) for point in points]
        use.plot(workers, busiest, color=color, marker="o", label=label)
        if points[-1].staleness:
            found = points[-1].staleness
            stale.step(
                [share.staleness for share in found],
                [share.share for share in found],
                where="mid",
                color=color,
                label=f"{label}, {points[-1].workers} workers",
            )
    rate.set_ylabel(f"{prediction.unit}/s")
    use.set_ylabel("use of the busiest link")
    stale.set_xlabel("updates of others since the pull")
    stale.set_ylabel("share of updates")
    for axes in (rate, use, stale):
        axes.set_ylim(bottom=0)
        axes.grid(color="0.92", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in (rate, use):
        axes.set_xlabel("workers")
    rate.legend(frameon=False, fontsize=8)
    figure.suptitle(prediction.name, x=0.01, ha="left")
    return figure


def plot_prediction(prediction: ThroughputPrediction, path: Path) -> None:
    """Draw the figure to `path`; its ending chooses the format (PNG, SVG, PDF)."""
    prediction_figure(prediction).savefig(path, dpi=150)


def prediction_page(prediction: ThroughputPrediction) -> str:
    """Return one self-contained HTML page; it loads nothing from anywhere."""
    encoded = base64.b64encode(prediction.to_csv().encode()).decode()
    link = f'<a download="prediction.csv" href="data:text/csv;base64,{encoded}">CSV</a>'
    title = f"Prediction: {escape(prediction.name)}"
    parts = [
        f"<h1>{title}</h1>",
        f"<p>Prediction to use: {prediction.trusted.replace('_', ' ')}. {link}</p>",
        f"<figure>{as_svg(prediction_figure(prediction))}</figure>",
        "<h2>Throughput</h2>",
        html_table(
            [
                *("workers", "servers", "Gbit/s", f"{prediction.unit}/s", "5 %", "95 %", "bottleneck"),
                *("staleness", "Cynthia", "closed network", "bound"),
            ],
            [_row(point) for point in prediction.points],
        ),
        "<h2>Gain of one change</h2>",
        html_table(
            ["servers", "Gbit/s", "knee", "with workers", "change", f"{prediction.unit}/s", "gain", "5-95 %"],
            [
                [
                    str(curve.servers),
                    f"{curve.bandwidth_gbps:g}",
                    "not reached" if curve.knee_workers is None else str(curve.knee_workers),
                    str(curve.at_workers),
                    better.change,
                    f"{better.throughput:.5g}",
                    f"{better.gain * 100:+.1f} %",
                    f"{better.low * 100:+.1f} to {better.high * 100:+.1f} %",
                ]
                for curve in prediction.curves
                for better in curve.improvements
            ],
        ),
        "<h2>Notes</h2>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in prediction.notes) + "</ul>",
        f'<p class="note">pace {__version__}, steps {prediction.steps_sha256}</p>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>" + "\n".join(parts) + "</body></html>\n"
    )


def _row(point: PredictedPoint) -> list[str]:
    numbers = (point.throughput, point.low, point.high)
    coarse = (point.coarse.cynthia, point.coarse.closed_network, point.coarse.bound)
    return [
        str(point.workers),
        f"{point.servers}{' (extrapolated)' if point.extrapolated else ''}",
        f"{point.bandwidth_gbps:g}",
        *(f"{number:.5g}" for number in numbers),
        point.bottleneck,
        f"{point.mean_staleness:.2f}",
        *(f"{number:.5g}" for number in coarse),
    ]
