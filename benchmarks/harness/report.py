"""The record for people: a page in Markdown."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.contenders import BY_NAME, FRAMEWORK_PAIRS, FRAMEWORKS, UNTUNED
from benchmarks.harness.results import SettingResult, from_document

DDP = ("ddp", "ddp-best")

_CLIPPED = (
    " All contenders clip gradients by their global norm, to about half of it, in every iteration; the bound"
    " is that of all schedules, in two halves or not."
)

_UNDER_FRAMEWORKS = (
    "The replay is trained by each framework's own loop: one `fit` of Lightning's Trainer, and the loop of"
    " Accelerate's documentation with a prepared loader. A framework's own default is the DDP that it wraps"
    " the model in, with torch's default bucket sizes scaled like the gradients. Windows are measured as for"
    " all others, from one start of a backward pass to the next, so what a framework's loop itself takes is"
    " part of both sides."
)

# What a user gets who chooses nothing: the planned order over torch, rank 0's choice over Horovod.
_DEFAULTS = ("pace-static", "pace-horovod")
# And where gradients are clipped.
_CLIPPING_DEFAULTS = ("pace-sharded", "pace-horovod-sharded")


def settings_of(record: dict[str, Any]) -> list[SettingResult]:
    """Return a record's settings."""
    return [from_document(document) for document in record["settings"]]


def markdown(record: dict[str, Any], *, command: str, chart: str | None = None) -> str:
    """Return the page: conditions, the targets, every setting, the simulator's errors."""
    settings = settings_of(record)
    conditions = record["conditions"]
    parts = [
        f"# Testbed, {conditions['date']}",
        "Iterations of real trainings over a real network, side by side: emulated compute, real gradients,"
        " real autograd, hooks and optimizers, unmodified peers (docs/testbed.md says how).",
        f"    {command}",
        _conditions(record),
    ]
    if chart:
        parts.append(f"![Iteration time over the bound]({chart})")
    parts += ["## In short", _summary(settings)]
    if _in_frameworks(settings):
        parts += ["## Under frameworks", _UNDER_FRAMEWORKS, _under_frameworks(settings)]
    else:
        parts += ["## Against the peers", _targets(settings)]
    parts += ["## Every setting", _legend(), *(_setting(setting) for setting in settings)]
    parts += ["## Predicted against measured", _fidelity(settings)]
    return "\n\n".join(parts) + "\n"


def _in_frameworks(settings: Sequence[SettingResult]) -> bool:
    theirs = {contender.name for contender in FRAMEWORKS}
    return any(contender.name in theirs for setting in settings for contender in setting.contenders)


def _defaults(settings: Sequence[SettingResult]) -> tuple[str, ...]:
    return _CLIPPING_DEFAULTS if any(setting.max_norm for setting in settings) else _DEFAULTS


def _conditions(record: dict[str, Any]) -> str:
    conditions = record["conditions"]
    networks = "; ".join(
        f"{network['workers']} hosts carried {min(network['rate_mbit_s']):.0f}"
        f"-{max(network['rate_mbit_s']):.0f} Mbit/s of payload ({network['congestion_control']})"
        for network in record["networks"]
    )
    frameworks = "".join(
        f", {framework.capitalize()} {number}"
        for framework, number in conditions.get("frameworks", {}).items()
    )
    return (
        f"{conditions['cores']}, Linux {conditions['kernel']}, Python {conditions['python']},"
        f" torch {conditions['torch']}, Horovod {conditions['horovod']}{frameworks},"
        f" PACE {conditions['pace']} at {conditions['commit']}."
        f" Links of {conditions['rate_mbit_s']:g} Mbit/s, both ways, with bursts of"
        f" {conditions['burst_ms']:g} ms: {networks}. Compute of a window: {conditions['compute_s']:g} s."
        f" {conditions['rounds']} rounds of {conditions['windows']} windows each (elsewhere than at the"
        f" target {conditions['rounds_elsewhere']} of {conditions['windows_elsewhere']}), contenders in turn."
        f"{_CLIPPED if conditions.get('clip') else ''}"
        f" It took {conditions['took_s'] / 60:.0f} minutes."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summary(settings: Sequence[SettingResult]) -> str:
    lines = []
    for name in _defaults(settings):
        found = [
            (setting, contender)
            for setting in settings
            for contender in setting.contenders
            if contender.name == name and contender.counts
        ]
        ratios = [(ratio, setting) for setting, c in found if (ratio := setting.speedup(c)) is not None]
        if not ratios:
            continue
        least, where = min(ratios, key=lambda pair: pair[0])
        close = sum(contender.gap <= 0.05 for _, contender in found)
        farthest = max(found, key=lambda pair: pair[1].gap)
        lines.append(
            f"- **{BY_NAME[name].label}**: {times(statistics.median(r for r, _ in ratios))} the best peer's"
            f" speed in the median of {len(ratios)} settings, {times(least)} at the least ({_place(where)});"
            f" within 5 % of the bound in {close} of {len(found)}, farthest from it {farthest[1].gap:.1%}"
            f" ({_place(farthest[0])})."
        )
    for framework, (_, ours) in FRAMEWORK_PAIRS.items() if _in_frameworks(settings) else ():
        measured = [
            (over, setting)
            for setting in settings
            for contender in setting.contenders
            if contender.name == ours and (over := setting.over_own_default(contender)) is not None
        ]
        if measured:
            least, where = min(measured, key=lambda pair: pair[0])
            lines.append(
                f"- **{framework}**: with PACE {times(least)} its own default's speed at the least of"
                f" {len(measured)} settings ({_place(where)})."
            )
    errors = [abs(c.error) for setting in settings for c in setting.contenders if c.counts]
    if errors:
        lines.append(
            f"- **Simulator** against {len(errors)} measurements: off by {statistics.median(errors):.1%} in"
            f" the median, {max(errors):.1%} at the most."
        )
    return "\n".join(lines)


def _place(setting: SettingResult) -> str:
    return f"{setting.model}, {setting.workers} workers, ratio {setting.ratio:g}"


def _targets(settings: Sequence[SettingResult]) -> str:
    rows = []
    for setting in settings:
        ours = [c for c in setting.contenders if c.name in _defaults([setting]) and c.counts]
        best = setting.best_pace
        if best is not None and best not in ours:
            ours.append(best)
        peer = setting.best()
        rows += [
            [
                *(setting.model, str(setting.workers), f"{setting.ratio:g}"),
                contender.label + (" (fastest)" if contender is best else ""),
                f"{contender.iteration_s * 1e3:.0f}",
                times(setting.speedup(contender, UNTUNED)),
                times(setting.speedup(contender, DDP)),
                times(setting.speedup(contender)),
                peer.label if peer else "-",
                f"{contender.gap * 100:+.1f} %",
            ]
            for contender in ours
        ]
    header = (
        *("model", "W", "ratio", "PACE", "ms", "over untuned peers", "over DDP's best size"),
        *("over the best peer", "which is", "above the bound"),
    )
    clipped = any(setting.max_norm for setting in settings)
    which = "in two halves" if clipped else "as it is by default"
    return f"PACE {which} over each backend, and whichever of its ways was fastest.\n\n" + table(header, rows)


def _under_frameworks(settings: Sequence[SettingResult]) -> str:
    rows = []
    for setting in settings:
        of_name = {contender.name: contender for contender in setting.contenders if contender.counts}
        for framework, (default, ours) in FRAMEWORK_PAIRS.items():
            if default in of_name and ours in of_name:
                rows.append(
                    [
                        *(framework, setting.model, str(setting.workers), f"{setting.ratio:g}"),
                        f"{of_name[default].iteration_s * 1e3:.1f}",
                        f"{of_name[ours].iteration_s * 1e3:.1f}",
                        times(setting.over_own_default(of_name[ours])),
                        f"{of_name[ours].gap * 100:+.1f} %",
                    ]
                )
    header = (
        *("framework", "model", "W", "ratio", "own default, ms", "PACE, ms"),
        *("PACE over it", "above the bound"),
    )
    return table(header, rows)


def times(value: float | None) -> str:
    """Write how many times faster something is."""
    return "-" if value is None else f"x {value:.2f}"


def _legend() -> str:
    return (
        "Median of all windows in ms; spread is half the distance between quartiles. Predicted: by the"
        " simulator, from the profile and from the all-reduce cost captured on these hosts. Bound: no"
        " schedule of any fusion is faster at its backend's cost. Weights: the largest error of any, against"
        " a reference computed in float64."
    )


def _setting(setting: SettingResult) -> str:
    rows = []
    for contender in sorted(setting.contenders, key=lambda c: c.iteration_s if c.counts else float("inf")):
        label = contender.label
        if contender.bucket_mib is not None:
            label += f" ({contender.bucket_mib:g} MiB x {setting.size_factor:.3g})"
        if not contender.counts:
            rows.append([label, "disqualified", contender.disqualified or "not timed", "", "", "", ""])
            continue
        rows.append(
            [
                label,
                f"{contender.iteration_s * 1e3:.1f}",
                f"{contender.spread:.1%}",
                times(setting.speedup(contender)),
                f"{contender.gap * 100:+.1f} %",
                f"{contender.predicted_s * 1e3:.1f} ({contender.error * 100:+.1f} %)",
                f"{contender.largest_weight_error:.1e}",
            ]
        )
    header = ("contender", "ms", "spread", "over the best peer", "above the bound", "predicted", "weights")
    title = (
        f"### {setting.model}, {setting.workers} workers, ratio {setting.ratio:g}\n\n"
        f"{setting.gradients} gradients, {setting.total_bytes / 1e6:.1f} MB"
        f" (sizes x {setting.size_factor:.3g}, times x {setting.time_factor:.3g})."
        f" Without communication {setting.plain_s * 1e3:.1f} ms, the profile says"
        f" {setting.compute_s * 1e3:.1f} ({setting.plain_error * 100:+.1f} %)."
        f"{_slowed(setting)} Machine's load before: {setting.load:.1f}."
    )
    return f"{title}\n\n{table(header, rows)}"


def _slowed(setting: SettingResult) -> str:
    factors = "; ".join(
        f"over {name} compute takes x {each['compute_slowdown']:.2f} as long beside all-reduces,"
        f" and they x {each['allreduce_slowdown']:.2f} beside it"
        for name, each in setting.contention.items()
    )
    return f" Contention: {factors}." if factors else ""


def _fidelity(settings: Sequence[SettingResult]) -> str:
    rows = []
    everything: list[float] = []
    for name, contender in BY_NAME.items():
        errors = [
            measured.error
            for setting in settings
            for measured in setting.contenders
            if measured.name == name and measured.counts
        ]
        if errors:
            everything += errors
            rows.append([contender.label, *error_cells(errors)])
    if everything:
        rows.append(["all", *error_cells(everything)])
    header = ("contender", "settings", "median error", "median of absolute errors", "worst")
    return table(header, rows)


def error_cells(errors: Sequence[float]) -> list[str]:
    """Return how many predictions there are and how far they are off."""
    return [
        str(len(errors)),
        f"{statistics.median(errors) * 100:+.1f} %",
        f"{statistics.median(map(abs, errors)) * 100:.1f} %",
        f"{max(errors, key=abs) * 100:+.1f} %",
    ]
