"""A record as a page in Markdown, and as a picture."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import BY_NAME, COMPARISONS, Comparison
from benchmarks.harness.results import ContenderResult, SettingResult, from_document

_TITLES = {
    "pace-servers": "Parameter servers",
    "pace-lightning": "Training loops of frameworks",
    "pace-hsdp": "HSDP",
    "pace-sharded": "Clipped gradients",
    "pace-static": "All-reduces",
}

_INTRODUCTION = (
    "Iterations of real training over a real network, side by side. Compute is emulated, except where a"
    " setting says otherwise. Gradients, autograd, hooks, optimizers and TCP are real, and peers are"
    " unmodified. docs/guides/measure.md describes how it is measured."
)

_NOTES = {
    "pace-sharded": "All contenders clip gradients by their global norm, to about half of it, in every"
    " iteration. The bound is that of all schedules, sharded or not.",
    "pace-lightning": "Each framework trains the replay in its own loop: one `fit` of Lightning's Trainer,"
    " and the loop of Accelerate's documentation with a prepared loader. A framework's own default is the"
    " DDP that it wraps the model in. torch's default bucket sizes are scaled like the gradients. The time"
    " of a framework's loop is part of both sides.",
    "pace-hsdp": "Hosts of a replica have links of their own. The bound knows both kinds of links. What"
    " compute waits for within a replica is measured with all processes at work and nothing between"
    " replicas, and taken as given: torch waits for these collectives on CPUs.",
    "servers-fifo": "All contenders but the rings use PACE's connections, threads, sums and pacing. They"
    " differ only in partitions, servers, order and credit. A policy's partition is sent whole, and answered"
    " when all of it is summed. PACE's rows are the runtime as users have it. Rings run on the"
    " workers' hosts.",
}

_LEGEND = (
    "Times are medians of all windows in ms. Spread is half the distance between the quartiles. Predicted:"
    " the simulator's window, from the profile and the costs measured on these hosts. Bound: no schedule of"
    " any fusion is faster at these costs. Weights: the largest error against a reference computed in"
    " float64; all ranks are equal to the bit."
)

_UNMODIFIED = (
    "TensorFlow is unmodified: its own servers and gRPC, on the same links, layers and sleeps. With the queue"
    " of tokens, a step starts when all workers have pushed everything. It then pulls everything, in an"
    " order of its own. Tensors are sent whole, to servers in turn, without pacing. Asynchronous steps wait"
    " for no other worker and give other weights: compare only times."
)


def settings_of(record: dict[str, Any]) -> list[SettingResult]:
    """Return a record's settings."""
    return [from_document(document) for document in record["settings"]]


def markdown(record: dict[str, Any], *, chart: str | None = None) -> str:
    """Return the page: conditions, comparisons, every setting, the simulator's errors."""
    settings = settings_of(record)
    names = {contender.name for setting in settings for contender in setting.contenders}
    title = next((text for name, text in _TITLES.items() if name in names), "Iteration times")
    comparisons = [each for each in COMPARISONS if names.intersection(each.ours)]
    parts = [
        f"# {title}",
        _INTRODUCTION,
        f"    {record['command']}",
        _conditions(record),
        *(note for name, note in _NOTES.items() if name in names),
        *([f"![Iteration time over the bound]({chart})"] if chart else []),
        "## In short",
        "\n".join(line for each in comparisons for line in _summary(each, settings)),
        _simulator(settings),
    ]
    for comparison in comparisons:
        parts += [f"## {comparison.title}", _compared(comparison, settings)]
    parts += ["## Every setting", _LEGEND, *(_setting(setting) for setting in settings)]
    parts += ["## Predicted against measured", _fidelity(settings)]
    if any(setting.unmodified for setting in settings):
        parts += ["## An unmodified peer", _UNMODIFIED, _unmodified(settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(record: dict[str, Any]) -> str:
    about = record["conditions"]
    frameworks = "".join(f", {name.capitalize()} {number}" for name, number in about["frameworks"].items())
    elsewhere = ""
    if any("workers" in network["layout"] for network in record["networks"]):
        elsewhere = (
            f" ({about['rounds_elsewhere']} of {about['windows_elsewhere']} away from 4 workers, ratio 1)"
        )
    return (
        f"{about['date']}: {about['cores']}, Linux {about['kernel']}, Python {about['python']}, torch"
        f" {about['torch']}, Horovod {about['horovod']}{frameworks}, PACE {about['pace']} at"
        f" {about['commit']}. Links of {about['rate_mbit_s']:g} Mbit/s, both ways, with bursts of"
        f" {about['burst_ms']:g} ms. {'. '.join(map(_network, record['networks']))}. Compute of a window:"
        f" {about['compute_s']:g} s. {about['rounds']} rounds of {about['windows']} windows{elsewhere},"
        f" contenders in turn. It took {about['took_s'] / 60:.0f} minutes."
    )


def _network(network: dict[str, Any]) -> str:
    low, high = min(network["rate_mbit_s"]), max(network["rate_mbit_s"])
    text = f"{network['layout']}: {low:.0f}-{high:.0f} Mbit/s of payload ({network['congestion_control']})"
    if inner := network.get("inner_mbit_s"):
        text += f", {min(inner):.0f}-{max(inner):.0f} within a replica"
    if links := network.get("exchange"):
        text += (
            f", a worker exchanged {links['worker_bytes_per_s'] * 8 / 1e6:.0f} Mbit/s with all servers,"
            f" round trip {links['round_trip_s'] * 1e3:.2f} ms, {links['partition_s'] * 1e6:.0f} us lost for"
            " each part"
        )
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times(value: float | None) -> str:
    """Write how many times faster something is."""
    return "-" if value is None else f"x {value:.2f}"


def _summary(comparison: Comparison, settings: Sequence[SettingResult]) -> Iterator[str]:
    """Yield a line for each of ours: its gap to the bound, and its speed against each baseline."""
    for name in comparison.ours:
        found = [(setting, ours) for setting in settings if (ours := setting.named(name)) is not None]
        if not found:
            continue
        gaps = [ours.gap for _, ours in found]
        farthest, _ = max(found, key=lambda pair: pair[1].gap)
        text = (
            f"- **{BY_NAME[name].label}**: {statistics.median(gaps):.1%} above the bound in the median of"
            f" {len(found)} settings, within 5 % in {sum(gap <= 0.05 for gap in gaps)}, {max(gaps):.1%} at"
            f" the most ({farthest})."
        )
        for label, names in comparison.baselines.items():
            ratios = [
                (ratio, setting)
                for setting, ours in found
                if (ratio := setting.speedup(ours, names)) is not None
            ]
            if ratios:
                least, where = min(ratios, key=lambda pair: pair[0])
                median = statistics.median(ratio for ratio, _ in ratios)
                text += f" Speed over {label}: {times(median)} in the median,"
                text += f" {times(least)} at the least ({where})."
        yield text


def _simulator(settings: Sequence[SettingResult]) -> str:
    errors = [abs(c.error) for setting in settings for c in setting.contenders if c.counts]
    if not errors:
        return ""
    return (
        f"The simulator is off by {statistics.median(errors):.1%} in the median of {len(errors)}"
        f" measurements, {max(errors):.1%} at the most."
    )


def _compared(comparison: Comparison, settings: Sequence[SettingResult]) -> str:
    rows = []
    for setting in settings:
        fastest = setting.best_pace
        ours = [found for name in comparison.ours if (found := setting.named(name)) is not None]
        against_all = None in comparison.baselines.values()
        if ours and against_all and fastest is not None and fastest not in ours:
            ours.append(fastest)
        peer = setting.best()
        for contender in ours:
            mark = " (fastest)" if against_all and contender is fastest else ""
            speeds = [times(setting.speedup(contender, names)) for names in comparison.baselines.values()]
            milliseconds = f"{contender.iteration_s * 1e3:.1f}"
            row = [
                str(setting),
                contender.label + mark,
                milliseconds,
                f"{contender.gap * 100:+.1f} %",
                *speeds,
            ]
            rows.append([*row, peer.label if peer else "-"] if against_all else row)
    header = [
        "setting",
        "PACE",
        "ms",
        "above the bound",
        *(f"over {label}" for label in comparison.baselines),
    ]
    return table([*header, "best peer"] if None in comparison.baselines.values() else header, rows)


def _setting(setting: SettingResult) -> str:
    rows = []
    for contender in sorted(setting.contenders, key=lambda c: c.iteration_s if c.counts else float("inf")):
        rows.append(_row(setting, contender))
    header = ("contender", "ms", "spread", "over the best peer", "above the bound", "predicted", "weights")
    pacing = setting.pacing_bytes_per_s
    title = (
        f"### {setting}\n\n"
        f"{setting.gradients} gradients, {setting.total_bytes / 1e6:.1f} MB (sizes x"
        f" {setting.size_factor:.3g}, times x {setting.time_factor:.3g})."
        + (f" Connections paced at {pacing * 8 / 1e6:.0f} Mbit/s." if pacing else "")
        + f" Without communication {setting.plain_s * 1e3:.1f} ms, in the profile"
        f" {setting.compute_s * 1e3:.1f} ({setting.plain_error * 100:+.1f} %).{_slowed(setting)} Load"
        f" average before: {setting.load:.1f}."
    )
    return "\n\n".join(part for part in (title, _two_wires(setting), table(header, rows)) if part)


def _two_wires(setting: SettingResult) -> str:
    known = setting.two_wires
    if known is None:
        return ""
    return (
        f"{len(known['gather_s'])} units. In an iteration compute waits {sum(known['gather_s']) * 1e3:.0f} ms"
        f" for all-gathers and {sum(known['scatter_s']) * 1e3:.0f} ms for reduce-scatters. The bound is"
        f" {known['joint_s'] * 1e3:.0f} ms. If compute went on beside them it would be"
        f" {known['beside_s'] * 1e3:.0f} ms, and without them {known['outer_s'] * 1e3:.0f} ms."
    )


def _row(setting: SettingResult, contender: ContenderResult) -> list[str]:
    label = contender.label
    if contender.bucket_mib is not None:
        label += f" ({contender.bucket_mib:g} MiB x {setting.size_factor:.3g})"
    if not contender.counts:
        return [label, "disqualified", contender.disqualified or "not timed", *[""] * 4]
    return [
        label,
        f"{contender.iteration_s * 1e3:.1f}",
        f"{contender.spread:.1%}",
        times(setting.speedup(contender)),
        f"{contender.gap * 100:+.1f} %",
        f"{contender.predicted_s * 1e3:.1f} ({contender.error * 100:+.1f} %)",
        f"{contender.largest_weight_error:.1e}",
    ]


def _slowed(setting: SettingResult) -> str:
    factors = "; ".join(
        f"over {name}, compute beside all-reduces takes x {each['compute_slowdown']:.2f} as long, and an"
        f" all-reduce of 1 MiB beside compute {dict(each['added_s']).get(1 << 20, 0.0) * 1e3:.1f} ms more"
        for name, each in setting.contention.items()
    )
    return f" Contention: {factors}." if factors else ""


def _fidelity(settings: Sequence[SettingResult]) -> str:
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for name in BY_NAME:
        for setting in settings:
            if (found := setting.named(name)) is not None:
                errors[found.label + (", paced" if setting.pacing_bytes_per_s else "")].append(found.error)
    errors["all"] = [error for each in errors.values() for error in each]
    rows = [
        [
            label,
            str(len(each)),
            f"{statistics.median(each) * 100:+.1f} %",
            f"{statistics.median(map(abs, each)) * 100:.1f} %",
            f"{max(each, key=abs) * 100:+.1f} %",
        ]
        for label, each in errors.items()
        if each
    ]
    return table(("contender", "settings", "median error", "median of absolute errors", "worst"), rows)


def _unmodified(settings: Sequence[SettingResult]) -> str:
    rows = []
    for setting in settings:
        ours = setting.best(["pace-servers", "pace-servers-static"])
        for run in setting.unmodified:
            if not run.counts:
                rows.append([str(setting), run.label, "failed", run.disqualified or "not timed", "", "", ""])
                continue
            rows.append(
                [
                    *(str(setting), run.label, f"{run.iteration_s * 1e3:.0f}", f"{run.spread:.1%}"),
                    f"{ours.label}, {ours.iteration_s * 1e3:.0f}" if ours else "-",
                    times(run.iteration_s / ours.iteration_s if ours else None),
                    str(len(run.windows_s)),
                ]
            )
    header = ("setting", "peer", "ms", "spread", "PACE's fastest, ms", "PACE over it", "windows")
    return table(header, rows)


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
