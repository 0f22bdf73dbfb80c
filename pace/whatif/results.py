"""What a what-if run answers: cells, and what follows from comparing them."""

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pace.documents.profile import Profile
from pace.whatif.grid import AXES, Grid
from pace.whatif.scenario import ASSUMPTIONS, Scenario, batch_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy at one point.

    Attributes
    ----------
    iteration_s, compute_s
        Iteration time, and iteration time without any all-reduce, in seconds.
    throughput
        Samples per second of all workers together; iterations per second if the batch is not known.
    scaling_efficiency
        Throughput, divided by that of the same number of single workers.
    speedup
        Iteration time of the baseline, divided by this one, at the same point.
    gain_per_gbps
        Relative gain of throughput for each further Gbit/s, up to the next bandwidth of the grid; None at the
        largest.
    """

    scenario: Scenario
    policy: str
    iteration_s: float
    compute_s: float
    throughput: float
    scaling_efficiency: float
    speedup: float
    gain_per_gbps: float | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the cell as one flat row; None where an axis keeps what was profiled."""
        numbers = {
            name: getattr(self, name)
            for name in (
                "iteration_s",
                "compute_s",
                "throughput",
                "scaling_efficiency",
                "speedup",
                "gain_per_gbps",
            )
        }
        return {**asdict(self.scenario), "policy": self.policy, **numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The bandwidth at which a policy reaches the target scaling efficiency; None if no bandwidth does."""

    scenario: Scenario
    policy: str
    target_efficiency: float
    bandwidth_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Cells of a grid in its order, policies innermost, and answers for the target efficiency."""

    profile: Profile
    grid: Grid
    cells: tuple[Cell, ...]
    answers: tuple[Answer, ...] = ()

    @property
    def unit(self) -> str:
        """What throughput counts in a second."""
        return batch_unit(self.profile)

    def points(self) -> Iterator[tuple[Cell, ...]]:
        """Yield the cells of one point after another."""
        step = len(self.grid.policies)
        for at in range(0, len(self.cells), step):
            yield self.cells[at : at + step]

    def to_document(self) -> dict[str, Any]:
        """Return everything as one JSON document."""
        return {
            "profile": self.profile.name,
            "profile_sha256": self.profile.sha256,
            "workers": self.profile.workers,
            "baseline": self.grid.baseline_policy,
            "throughput_unit": f"{self.unit}/s",
            "assumptions": list(ASSUMPTIONS),
            "cells": [cell.as_row() for cell in self.cells],
            "targets": [
                {
                    **{axis: getattr(answer.scenario, axis) for axis in AXES if axis != "bandwidth_gbps"},
                    "policy": answer.policy,
                    "target_efficiency": answer.target_efficiency,
                    "bandwidth_gbps": answer.bandwidth_gbps,
                }
                for answer in self.answers
            ],
        }

    def to_csv(self) -> str:
        """Return the cells as CSV with a header; empty where an axis keeps what was profiled."""
        text = io.StringIO()
        rows = [cell.as_row() for cell in self.cells]
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
