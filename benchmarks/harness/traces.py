"""A measured window beside the predicted one, as a Chrome trace: for finding out why they differ."""

import json
from pathlib import Path
from typing import Any

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.runtime.engine.report import Report
from pace.view.perfetto import chrome_trace

MICROSECONDS = 1e6


def write_traces(traces: dict[tuple[str, str, float], Any], folder: Path) -> list[Path]:
    """Write one file for each contender of PACE's; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for (model, layout, ratio), contenders in traces.items():
        for name, (profile, schedule, trace) in contenders.items():
            if schedule is None or trace is None:
                continue
            path = folder / f"{model}-{layout}-r{ratio:g}-{name}.json".replace(" ", "-")
            path.write_text(json.dumps(side_by_side(profile, schedule, trace)))
            written.append(path)
    return written


def side_by_side(profile: Profile, schedule: Schedule, trace: Any) -> dict[str, Any]:
    """Return the predicted window and a measured one, both from the start of the backward pass.

    `trace` is what ``Trainer.trace`` returned. The round that the report tells is the last one: its
    window's backward pass is the last, and its forward pass was cut off by the end of training, so ops are
    shown of the window before, and the network's segments of the last.
    """
    starts, ops, report = trace
    document = chrome_trace(profile, schedule)
    events = document["traceEvents"]
    events.append({"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "measured: ops"}})
    window = (starts[-2], starts[-1])
    events += [
        _slice(2, 0, op, started - window[0], ended - window[0], {})
        for op, started, ended in ops
        if window[0] <= started < window[1]
    ]
    events.append({"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "measured: network"}})
    if report is not None:
        offset = first_submission(report, schedule)
        for segment in report.segments:
            events.append(
                _slice(
                    *(3, 0, f"group {segment.group}", segment.sent_s + offset, segment.done_s + offset),
                    {"size_bytes": segment.size_bytes},
                )
            )
    return document


def first_submission(report: Report, schedule: Schedule) -> float:
    """Return when, in the window, the report's clock began: at the first group's readiness."""
    first = min(range(len(report.groups)), key=lambda number: report.groups[number].submitted_s)
    return schedule.groups[first].ready_s - report.groups[first].submitted_s


def _slice(
    pid: int, tid: int, name: str, start_s: float, end_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start_s * MICROSECONDS,
        "dur": (end_s - start_s) * MICROSECONDS,
        "args": arguments,
    }
