"""What a what-if run answers: cells, and what follows from comparing them."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pace.documents.profile import Profile
from pace.whatif.grid import Grid
from pace.whatif.scenario import ASSUMPTIONS, Scenario, batch_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Scenario):
    """One policy at one point; None where an axis keeps what was profiled.

    Attributes
    ----------
    iteration_s, compute_s
        Iteration time, and iteration time without any all-reduce, in seconds.
    throughput
        Samples per second of all workers together; batches if the size of one is not known.
    scaling_efficiency
        Throughput, divided by that of the same number of single workers.
    speedup
        Iteration time of the baseline, divided by this one, at the same point.
    gain_per_gbps
        Relative gain of throughput for each further Gbit/s, up to the next bandwidth of the grid; None at the
        largest.
    """

    policy: str
    iteration_s: float
    compute_s: float
    throughput: float
    scaling_efficiency: float
    speedup: float
    gain_per_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Scenario):
    """The bandwidth at which a policy reaches the target scaling efficiency; None if no bandwidth does."""

    policy: str
    target_efficiency: float


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
            "cells": [asdict(cell) for cell in self.cells],
            "targets": [asdict(answer) for answer in self.answers],
        }

    def to_csv(self) -> str:
        """Return the cells as CSV with a header; empty where an axis keeps what was profiled."""
        return to_csv([asdict(cell) for cell in self.cells])


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return cells, by the names of their fields, as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
