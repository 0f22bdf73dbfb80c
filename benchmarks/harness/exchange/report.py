"""The record of pushes and pulls for people: a page in Markdown."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.exchange.contenders import EXCHANGE_BY_NAME
from benchmarks.harness.exchange.results import (
    EQUAL_PARTS,
    WHOLE,
    ExchangeSetting,
    from_exchange_document,
)
from benchmarks.harness.report import error_cells, table, times

_SAME = (
    "All contenders but the rings go over PACE's wire: the same frames, connections, threads, sums and"
    " pacing. A policy is the simulator's own partitions, servers, order and credit, so what differs between"
    " rows is the policy. Its partitions go out whole and come back when all of each is summed; PACE's own"
    " rows are the runtime as users have it (chunks of 64 KiB, chosen late). Rings are the all-reduce"
    " testbed's contenders on the workers' hosts."
)
_PEER = (
    "TensorFlow is unmodified, with its own servers and gRPC on the same links, and the same layers and"
    " sleeps. What differs from the rows above: it pulls everything at the start of a step, in an order of"
    " its own, and with the queue of tokens that is when all workers have pushed everything; tensors go"
    " whole, to servers in turn; updates run on the servers; gRPC has its own flow control and no pacing."
    " Asynchronous steps wait for nobody and give other weights: compare nothing but the time."
)


def exchange_page(record: dict[str, Any]) -> str:
    """Return the page: conditions, targets, every setting, the simulator's errors."""
    settings = [from_exchange_document(document) for document in record["settings"]]
    parts = [
        f"# Testbed of pushes and pulls, {record['conditions']['date']}",
        "Iterations of real trainings over a real network, side by side: emulated compute, real gradients,"
        " processes and TCP (docs/testbed.md says how).",
        f"    {record['command']}",
        _conditions(record),
        _SAME,
        "## In short",
        _summary(settings),
        "## PACE against the policies",
        _targets(settings),
        "## Every setting",
        _legend(),
        *(_setting(setting) for setting in settings),
        "## Predicted against measured",
        _fidelity(settings),
    ]
    if any(setting.unmodified for setting in settings):
        parts += ["## An unmodified peer", _PEER, _unmodified(settings)]
    return "\n\n".join(parts) + "\n"


def _conditions(record: dict[str, Any]) -> str:
    conditions = record["conditions"]
    networks = "; ".join(
        f"{network['layout']}: {min(network['rate_mbit_s']):.0f}-{max(network['rate_mbit_s']):.0f} Mbit/s of"
        f" payload, a worker exchanged {network['exchange']['worker_bytes_per_s'] * 8 / 1e6:.0f} with all"
        f" servers, round trip {network['exchange']['round_trip_s'] * 1e3:.2f} ms, a part loses"
        f" {network['exchange']['partition_s'] * 1e6:.0f} us ({network['congestion_control']})"
        for network in record["networks"]
    )
    return (
        f"{conditions['cores']}, Linux {conditions['kernel']}, Python {conditions['python']}, torch"
        f" {conditions['torch']}, PACE {conditions['pace']} at {conditions['commit']}. Links of"
        f" {conditions['rate_mbit_s']:g} Mbit/s, both ways, with bursts of {conditions['burst_ms']:g} ms."
        f" {networks}. Compute of a window: {conditions['compute_s']:g} s. {conditions['rounds']} rounds of"
        f" {conditions['windows']} windows each, contenders in turn. It took"
        f" {conditions['took_s'] / 60:.0f} minutes."
    )


def _place(setting: ExchangeSetting) -> str:
    paced = "paced" if setting.pacing_bytes_per_s else "not paced"
    return f"{setting.model}, {setting.layout}, ratio {setting.ratio:g}, {paced}"


def _summary(settings: Sequence[ExchangeSetting]) -> str:
    lines = []
    for name in ("pace-overtake", "pace-static"):
        found = [(setting, each) for setting in settings if (each := setting.named(name)) is not None]
        if not found:
            continue
        farthest = max(found, key=lambda pair: pair[1].gap)
        middle = statistics.median(c.gap for _, c in found)
        text = (
            f"- **{EXCHANGE_BY_NAME[name].label}**: {middle:.1%} above the bound in the median of"
            f" {len(found)} settings, {farthest[1].gap:.1%} at the most ({_place(farthest[0])})"
        )
        gains = [
            (gain, setting) for setting, c in found if (gain := setting.gain(c, EQUAL_PARTS)) is not None
        ]
        if gains:
            least, where = min(gains, key=lambda pair: pair[0])
            text += (
                f"; {times(statistics.median(gain for gain, _ in gains))} the speed of FIFO with equal parts"
                f" in the median, {times(least)} at the least ({_place(where)})"
            )
        lines.append(f"{text}.")
    errors = [abs(c.error) for setting in settings for c in setting.contenders if c.counts]
    if errors:
        lines.append(
            f"- **Simulator** against {len(errors)} measurements: off by {statistics.median(errors):.1%} in"
            f" the median, {max(errors):.1%} at the most."
        )
    return "\n".join(lines)


def _targets(settings: Sequence[ExchangeSetting]) -> str:
    rows = []
    for setting in settings:
        for name in ("pace-overtake", "pace-static"):
            ours = setting.named(name)
            if ours is None:
                continue
            peer = setting.best()
            rows.append(
                [
                    *(setting.model, setting.layout, f"{setting.ratio:g}"),
                    "yes" if setting.pacing_bytes_per_s else "no",
                    ours.label,
                    f"{ours.iteration_s * 1e3:.0f}",
                    f"{ours.gap * 100:+.1f} %",
                    times(setting.gain(ours, EQUAL_PARTS)),
                    times(setting.gain(ours, WHOLE)),
                    times(setting.speedup(ours)),
                    peer.label if peer else "-",
                ]
            )
    header = (
        *("model", "layout", "ratio", "paced", "PACE", "ms", "above the bound"),
        *("over FIFO, equal parts", "over FIFO, whole", "over the best other", "which is"),
    )
    return table(header, rows)


def _legend() -> str:
    return (
        "Median of all windows in ms; spread is half the distance between quartiles. Predicted: by the"
        " simulator, from the profile and from links measured on these hosts with `pace ps measure`'s tool."
        " Bound: no fusion, partition, placement or order is faster on these links. Weights: the largest"
        " error of any against a reference computed in float64; all ranks are equal to the bit."
    )


def _setting(setting: ExchangeSetting) -> str:
    rows = []
    for contender in sorted(setting.contenders, key=lambda c: c.iteration_s if c.counts else float("inf")):
        if not contender.counts:
            rows.append([contender.label, "disqualified", contender.disqualified or "not timed", *[""] * 4])
            continue
        rows.append(
            [
                contender.label,
                f"{contender.iteration_s * 1e3:.1f}",
                f"{contender.spread:.1%}",
                f"{contender.gap * 100:+.1f} %",
                f"{contender.predicted_s * 1e3:.1f} ({contender.error * 100:+.1f} %)",
                times(setting.gain(contender, EQUAL_PARTS)),
                f"{contender.largest_weight_error:.1e}",
            ]
        )
    header = (
        "contender",
        "ms",
        "spread",
        "above the bound",
        "predicted",
        "over FIFO, equal parts",
        "weights",
    )
    pacing = setting.pacing_bytes_per_s
    title = (
        f"### {_place(setting)}\n\n"
        f"{setting.gradients} gradients, {setting.total_bytes / 1e6:.1f} MB (sizes x"
        f" {setting.size_factor:.3g}, times x {setting.time_factor:.3g})."
        + (f" Connections paced at {pacing * 8 / 1e6:.0f} Mbit/s." if pacing else "")
        + f" Without communication {setting.plain_s * 1e3:.1f} ms, the profile says"
        f" {setting.compute_s * 1e3:.1f} ({setting.plain_error * 100:+.1f} %). Machine's load before:"
        f" {setting.load:.1f}."
    )
    return f"{title}\n\n{table(header, rows)}"


def _fidelity(settings: Sequence[ExchangeSetting]) -> str:
    rows = []
    everything: list[float] = []
    for name, contender in EXCHANGE_BY_NAME.items():
        for paced in (True, False):
            errors = [
                found.error
                for setting in settings
                if (found := setting.named(name)) is not None
                and (setting.pacing_bytes_per_s is not None) == paced
            ]
            if errors:
                everything += errors
                rows.append([contender.label, "yes" if paced else "no", *error_cells(errors)])
    if everything:
        rows.append(["all", "", *error_cells(everything)])
    header = ("contender", "paced", "settings", "median error", "median of absolute errors", "worst")
    return table(header, rows)


def _unmodified(settings: Sequence[ExchangeSetting]) -> str:
    rows = []
    for setting in settings:
        ours = setting.best_ours
        for run in setting.unmodified:
            place = [setting.model, setting.layout, f"{setting.ratio:g}", run.label]
            if len(run.windows_s) < 2:
                rows.append([*place, "failed", run.failed or "not timed", "", "", ""])
                continue
            rows.append(
                [
                    *place,
                    f"{run.iteration_s * 1e3:.0f}",
                    f"{run.spread:.1%}",
                    f"{ours.label}, {ours.iteration_s * 1e3:.0f}" if ours else "-",
                    times(run.iteration_s / ours.iteration_s if ours else None),
                    str(len(run.windows_s)),
                ]
            )
    header = (
        *("model", "layout", "ratio", "peer", "ms", "spread", "PACE's fastest, ms"),
        *("PACE over it", "windows"),
    )
    return table(header, rows)
