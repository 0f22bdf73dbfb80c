"""A measured run beside what one worker's profile predicts for it.

What was measured before is predicted anew from the steps that a record keeps, for the tables of the page.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.studies.throughput.shapes import ModelShape, shape_of
from pace.documents.steps import StepsDocument
from pace_servers.documents.fleet import Fleet
from pace_servers.documents.prediction import PredictionOptions
from pace_servers.throughput import predict, simulate_steps
from pace_servers.throughput.coarse import compute_s, cynthia_rate, link_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One setting: steps a second measured (one number a repetition) and predicted; relative errors.

    Attributes
    ----------
    halved_cynthia
        Cynthia with half the transfer time.
    closed_network
        Mean value analysis, as in Lin et al. (MASCOTS 2018).
    """

    system: str
    model: str
    ratio: float
    discipline: str
    workers: int
    servers: int
    measured: tuple[float, ...]
    predicted: float
    low: float
    high: float
    cynthia: float
    halved_cynthia: float
    closed_network: float
    bound: float
    load_average: float

    @property
    def error(self) -> float:
        """Relative error of the prediction against the mean of the repetitions; nan where there is none."""
        return self.error_of("predicted")

    @property
    def comparable(self) -> bool:
        """Whether all workers were past their warm-up before the first had ended, each time."""
        return all(self.measured)

    def error_of(self, model: str) -> float:
        """Relative error of a coarser model."""
        measured = float(np.mean(self.measured))
        return float(getattr(self, model)) / measured - 1 if self.comparable else math.nan

    def as_row(self) -> dict[str, object]:
        """Return everything for JSON."""
        return {**asdict(self), "error": self.error if self.comparable else None}


def measured_rate(ends_s: Sequence[Sequence[float]], skip: int) -> float:
    """Return steps per second between the last worker's warm-up and the first worker's end.

    0 if one has ended before another is past its warm-up: then nothing can be compared.
    """
    start = max(ends[skip - 1] for ends in ends_s)
    end = min(ends[-1] for ends in ends_s)
    if end <= start:
        return 0.0
    return sum(start < moment <= end for ends in ends_s for moment in ends) / (end - start)


def compare(
    document: StepsDocument,
    measured: Sequence[float],
    *,
    workers: int,
    steps: int,
    skip: int,
    system: str,
    model: str,
    ratio: float,
    load_average: float,
    share_spread: float | None = None,
    share_spread_bytes: int | None = None,
) -> Comparison:
    """Predict the same steps that were measured, with a band over 20 seeds."""
    options = PredictionOptions(
        workers=(workers,),
        steps=steps,
        skip=skip,
        seeds=20,
        advice=False,
        share_spread=share_spread,
        share_spread_bytes=share_spread_bytes,
    )
    point = predict(document, options, threads=1).points[0]
    batch = document.batch
    return Comparison(
        system=system,
        model=model,
        ratio=ratio,
        discipline=document.link.discipline,
        workers=workers,
        servers=document.servers,
        measured=tuple(measured),
        predicted=point.throughput / batch,
        low=point.low / batch,
        high=point.high / batch,
        cynthia=point.coarse.cynthia / batch,
        halved_cynthia=halved_cynthia(document, workers),
        closed_network=point.coarse.closed_network / batch,
        bound=point.coarse.bound / batch,
        load_average=load_average,
    )


def halved_cynthia(document: StepsDocument, workers: int) -> float:
    """Return Cynthia's steps per second for half the transfer time: a variant in the paper repeated here."""
    demands = link_s(document, Fleet())
    down, up = demands[: document.servers], demands[document.servers :]
    return cynthia_rate(compute_s(document), (max(down) + max(up)) / 4, workers)


def replay_errors(document: StepsDocument) -> tuple[list[float], list[float]]:
    """Return the relative errors of every recorded step's length, and of every downlink's end time."""
    steps, downlinks = [], []
    down = [at for at, op in enumerate(document.ops) if op.resource == "downlink" and op.size_bytes]
    count = len(document.steps)
    run = simulate_steps(document, 1, steps=count, skip=0, drawn=[list(range(count))], num_recorded=count)
    began = 0.0
    for number, step in enumerate(document.steps):
        assert step.start_s is not None
        ends = np.add(step.start_s, step.duration_s)
        steps.append(float((run.end_s[number] - began) / ends.max() - 1))
        downlinks += ((run.op_end_s[0, number, down] - began) / ends[down] - 1).tolist()
        began = float(run.end_s[number])
    return steps, downlinks


class System(Protocol):
    """A system that trains with parameter servers.

    Attributes
    ----------
    bytes_per_s
        The rate of a link, for which models are scaled to a ratio.
    """

    name: str
    bytes_per_s: float

    def profile(self, shape: ModelShape, servers: int, steps: int) -> StepsDocument:
        """Record a lone worker's steps."""

    def ends_s(
        self, shape: ModelShape, workers: int, servers: int, steps: int, seed: int, /
    ) -> Sequence[Sequence[float]]:
        """Train and return when each worker's steps ended."""


def compare_all(
    system: System,
    *,
    models: Sequence[str],
    ratios: Sequence[float],
    workers: Sequence[int],
    servers: Sequence[int],
    total_bytes: float,
    profiled: int,
    steps: int,
    skip: int,
    repetitions: int,
    share_spread: float | None = None,
    share_spread_bytes: int | None = None,
) -> Iterator[tuple[Comparison | None, dict[str, Any]]]:
    """Profile one worker, then measure and predict each number of workers; yield rows for JSON."""
    grid = [(model, ratio, count) for model in models for ratio in ratios for count in servers]
    for model, ratio, num_servers in grid:
        shape = shape_of(model, total_bytes=total_bytes, ratio=ratio, bytes_per_s=system.bytes_per_s)
        document = system.profile(shape, num_servers, profiled)
        of_steps, of_downlinks = replay_errors(document)
        about = {"system": system.name, "model": model, "ratio": ratio}
        row = about | {
            "servers": num_servers,
            "bytes_per_s": document.link.bytes_per_s,
            "steps_dropped": document.metadata.get("steps_dropped"),
            "replay_errors": of_steps,
            "downlink_errors": of_downlinks,
            "document": document.model_dump(mode="json"),
        }
        yield None, row
        for count in workers:
            measured = [
                measured_rate(system.ends_s(shape, count, num_servers, steps, 1 + repetition), skip)
                for repetition in range(repetitions)
            ]
            found = compare(
                document,
                measured,
                workers=count,
                steps=steps,
                skip=skip,
                share_spread=share_spread,
                share_spread_bytes=share_spread_bytes,
                system=system.name,
                model=model,
                ratio=ratio,
                load_average=os.getloadavg()[0],
            )
            yield found, found.as_row()


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
