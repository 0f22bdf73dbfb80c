"""The cells of runs as Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import table
from benchmarks.studies.papers.mlfabric import CLAIMS, COMPUTE

Cell = dict[str, Any]


def page_of(cells: Sequence[Cell]) -> str:
    """Return tables of measured and simulated times, speeds over the ring, and what logs say."""
    parts = ["## Seconds for one update of each worker: measured (simulated)", _times(cells)]
    parts += ["## Speed over the ring: measured (simulated; the paper's claim)", _speeds(cells)]
    parts += ["## What the fabric's logs say", _logs(cells)]
    return "\n\n".join(parts) + "\n"


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell["contenders"]))


def _at(cell: Cell) -> str:
    return f"{cell['network']} {cell['compute']}"


def _times(cells: Sequence[Cell]) -> str:
    names = _names(cells)
    rows = []
    for cell in cells:
        row = [_at(cell)]
        for name in names:
            found = cell["contenders"].get(name)
            row.append("" if found is None else f"{_s(found['iteration_s'])} ({_s(found['simulated_s'])})")
        rows.append(row)
    return table(("", *names), rows)


def _s(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _speeds(cells: Sequence[Cell]) -> str:
    names = [name for name in _names(cells) if name != "ring"]
    rows = []
    for cell in cells:
        ring = cell["contenders"].get("ring")
        if ring is None:
            continue
        row = [_at(cell)]
        for name in names:
            found = cell["contenders"].get(name)
            row.append("" if found is None else f"{_ratio(ring, found)}")
        claims = dict(zip(COMPUTE, CLAIMS.get(cell["network"], ()), strict=False))
        claim = claims.get(cell["compute"])
        rows.append([*row, "" if claim is None else f"{claim:.2f}"])
    return table(("", *names, "claim"), rows)


def _ratio(ring: Cell, other: Cell) -> str:
    both = []
    for key in ("iteration_s", "simulated_s"):
        both.append(f"{ring[key] / other[key]:.2f}" if ring[key] and other[key] else "none")
    return f"{both[0]} ({both[1]})"


def _logs(cells: Sequence[Cell]) -> str:
    rows = []
    for cell in cells:
        for name, found in cell["contenders"].items():
            facts = found["facts"]
            if name not in ("fabric", "fabric-oracle"):
                continue
            off = facts["median_off_plan"]
            rows.append(
                [
                    _at(cell),
                    facts["network_state"],
                    str(facts["updates"]),
                    str(facts["commits"]),
                    str(sum(facts["dropped"].values())),
                    f"{facts['greatest_delay']} of {cell['scenario']['delay_bound'] // 2}",
                    str(len(facts["violations"])),
                    f"{facts['server_bytes_over_plan']:.3f}",
                    "none" if off is None else f"{off:.3f}",
                ]
            )
    head = ("", "network state", "updates", "commits", "dropped", "greatest delay", "violations")
    return table((*head, "server bytes over plan", "median off plan"), rows)
