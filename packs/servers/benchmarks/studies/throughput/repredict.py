"""Predicts anew what was measured before, from the steps that a record keeps; writes the page's tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.throughput.compare import Comparison, compare
from pace.documents.steps import StepsDocument


def repredict_runs(
    paths: Sequence[Path],
    *,
    steps: int,
    skip: int,
    share_spread: float | None = None,
    share_spread_bytes: int | None = None,
) -> tuple[list[Comparison], list[dict[str, Any]]]:
    """Return comparisons with today's predictions, and the rows about profiles, of records in JSON."""
    found: list[Comparison] = []
    profiles: list[dict[str, Any]] = []
    for path in paths:
        for row in json.loads(path.read_text())["rows"]:
            if "document" in row:
                profiles.append(row)
                continue
            document = StepsDocument.model_validate(profiles[-1]["document"])
            found.append(
                compare(
                    document,
                    row["measured"],
                    workers=row["workers"],
                    steps=steps,
                    skip=skip,
                    share_spread=share_spread,
                    share_spread_bytes=share_spread_bytes,
                    system=row["system"],
                    model=row["model"],
                    ratio=row["ratio"],
                    load_average=row["load_average"],
                )
            )
    return found, profiles


def tables(found: Sequence[Comparison], profiles: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: replays and downlink ends of each profile, then every setting."""
    lines = [
        "| model | ratio | servers | replay: median, worst | downlink ends: mean, median, p95, worst |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in profiles:
        replay, ends = np.abs(row["replay_errors"]), np.abs(row["downlink_errors"])
        lines.append(
            f"| {row['model']} | {row['ratio']:g} | {row['servers']} | {np.median(replay):.1%}, "
            f"{replay.max():.1%} | {ends.mean():.1%}, {np.median(ends):.1%}, {np.quantile(ends, 0.95):.1%}, "
            f"{ends.max():.1%} |"
        )
    lines += [
        "",
        "| model | ratio | servers | workers | measured, steps/s | predicted (5-95 %) | error | Cynthia "
        "| halved | network | bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        measured = ", ".join(f"{rate:.3g}" for rate in one.measured)
        names = ("cynthia", "halved_cynthia", "closed_network", "bound")
        coarse = " | ".join(f"{one.error_of(name):+.1%}" for name in names)
        lines.append(
            f"| {one.model} | {one.ratio:g} | {one.servers} | {one.workers} | {measured} | "
            f"{one.predicted:.3g} ({one.low:.3g}-{one.high:.3g}) | {one.error:+.1%} | {coarse} |"
        )
    return "\n".join(lines)
