"""The recorded step above the step that PACE plans, on one scale of time, as SVG for the headroom page."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from pace.documents.profile import Profile
from pace.documents.recorded_step import recorded_step
from pace.documents.schedule import Schedule
from pace.formats.replay import after_the_barrier_s
from pace.planning.allreduce.optimize import optimize_allreduce
from pace.view.window import lay_out

_WIDTH, _LEFT, _ROW, _GAP = 900.0, 150.0, 22.0, 5.0
_AXIS, _TICKS, _SHORTEST_S = 18.0, 6, 1e-9
_COLORS = {"backward": "#4a7db5", "forward": "#7fb069", "call": "#e0a458"}
_MEANINGS = (("backward", "backward pass"), ("forward", "update and forward pass"), ("call", "all-reduces"))
Bar = tuple[float, float, str, str]  # start and end in seconds, the kind of its color, what it is
Row = tuple[str, Sequence[Bar]]


def step_timelines(profile: Profile) -> str:
    """Return a section of HTML; nothing for a profile without a recorded step."""
    replay = recorded_step(profile)
    if replay is None or not replay.calls:
        return ""
    window_s, late_s = replay.predicted_s, replay.late_s
    calls = [
        (call.lane, (call.start_s, call.end_s, "call", f"{call.size_bytes:,} bytes")) for call in replay.calls
    ]
    schedule = optimize_allreduce(profile)
    planned_s = schedule.predicted.iteration_s
    longest = max(window_s, planned_s, *(bar[1] for _, bar in calls))
    recorded = _recorded_rows(profile, calls)
    late = f", and {late_s * 1e3:.2f} ms of waiting that no schedule changes" if late_s > 0 else ""
    parts = [
        "<h2>The recorded step and the planned one</h2>",
        "<p>" + "".join(_swatch(kind, meaning) for kind, meaning in _MEANINGS) + "</p>",
        f"<h3>Recorded: {window_s * 1e3:.2f} ms</h3>",
        _drawn("The recorded step", recorded, longest),
        f"<h3>PACE: {planned_s * 1e3:.2f} ms{late}</h3>",
        _drawn("The planned step", _planned_rows(profile, schedule), longest),
    ]
    return "".join(parts)


def _recorded_rows(profile: Profile, calls: Sequence[tuple[str, Bar]]) -> list[Row]:
    reduced_s = max(end for _, (_, end, _, _) in calls)
    waited = max(reduced_s + after_the_barrier_s(profile) - profile.timing.compute_s, 0.0)
    bars = []
    for op, start in zip(profile.ops, _starts(profile), strict=True):
        later = waited if op.name.startswith("fwd/") else 0.0
        if op.kind == "compute":
            phase = "forward" if op.name.startswith("fwd/") else "backward"
            bars.append((start + later, start + later + op.duration_s, phase, op.name))
    lanes = list(dict.fromkeys(lane for lane, _ in calls))
    rows: list[Row] = [("compute", _joined(bars))]
    for place, lane in enumerate(lanes, start=1):
        name = "network" if len(lanes) == 1 else f"all-reduces, lane {place}"
        rows.append((name, [bar for own, bar in calls if own == lane]))
    return rows


def _starts(profile: Profile) -> list[float]:
    """Return when every op starts if nothing waits for the network."""
    ends = [0.0] * len(profile.ops)
    starts = [0.0] * len(profile.ops)
    for number in profile.graph.order:
        starts[number] = max((ends[before] for before in profile.graph.predecessors[number]), default=0.0)
        ends[number] = starts[number] + profile.ops[number].duration_s
    return starts


def _planned_rows(profile: Profile, schedule: Schedule) -> list[Row]:
    window = lay_out(profile, schedule)
    bars = [
        (float(start), float(end), "forward" if op.name.startswith("fwd/") else "backward", op.name)
        for op, start, end in zip(profile.ops, window.times.starts_s, window.times.ends_s, strict=True)
        if op.kind == "compute"
    ]
    transfers = [
        (moved.start_s, moved.end_s, "call", f"{moved.size_bytes:,} bytes") for moved in window.transfers
    ]
    return [("compute", _joined(bars)), ("network", transfers)]


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """Join ops of one phase that follow each other at once: thousands of ops are a few bars."""
    joined: list[Bar] = []
    for start, end, kind, name in sorted(bars):
        if joined and joined[-1][2] == kind and start <= joined[-1][1] + 1e-6:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]), kind, joined[-1][3])
        elif end > start:
            joined.append((start, end, kind, name))
    return joined


def _swatch(kind: str, meaning: str) -> str:
    return f'<span class="swatch" style="background:{_COLORS[kind]}"></span>{meaning} '


def _drawn(title: str, rows: Sequence[Row], longest_s: float) -> str:
    scale = (_WIDTH - _LEFT) / longest_s if longest_s > 0 else 0.0
    height = len(rows) * (_ROW + _GAP)
    parts = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}">',
        f'<svg viewBox="0 0 {_WIDTH:g} {height + _AXIS:g}" role="img" aria-label="{title}" '
        'font-family="sans-serif" font-size="12" fill="currentColor">',
    ]
    for moment_s in _tick_times(longest_s):
        x = _LEFT + moment_s * scale
        anchor = "start" if moment_s == 0 else "middle" if x < _WIDTH - _ROW else "end"
        parts.append(
            f'<path d="M{x:.1f} 0V{height:g}" stroke="currentColor" stroke-opacity=".25"/>'
            f'<text x="{x:.1f}" y="{height + 0.75 * _AXIS:g}" text-anchor="{anchor}">'
            f"{moment_s * 1e3:g} ms</text>"
        )
    for place, (label, bars) in enumerate(rows):
        top = place * (_ROW + _GAP)
        parts.append(f'<text x="0" y="{top + 0.7 * _ROW:.1f}">{escape(label)}</text>')
        for start, end, kind, name in bars:
            x, width = _LEFT + start * scale, max((end - start) * scale, 0.5)
            shown = f"{escape(name)}: {start * 1e3:.2f} to {end * 1e3:.2f} ms"
            parts.append(
                f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{_ROW:g}" '
                f'fill="{_COLORS[kind]}" stroke="Canvas" stroke-width="0.5"><title>{shown}</title></rect>'
            )
    return "".join(parts) + "</svg></div>"


def _tick_times(longest_s: float) -> list[float]:
    """Return round times from 0 to the longest, at most a few."""
    if not _SHORTEST_S < longest_s < math.inf:
        return []
    power = 10.0 ** math.floor(math.log10(longest_s / _TICKS))
    apart = next((power * f for f in (1, 2, 5) if power * f * _TICKS >= longest_s), power * 10)
    return [round(number * apart, 12) for number in range(int(longest_s / apart) + 1)]
