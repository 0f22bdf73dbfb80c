"""One scenario under one policy: the entry point, and training by a ring or a tree without any server.

What-ifs run it over delay bounds and numbers of aggregators, to say what each gains over a ring.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Literal

import numpy as np

from pace.errors import InvalidOptions
from pace.whatif.results import to_csv
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links, rates_at
from pace_fabric.simulation.planned import simulate_planned
from pace_fabric.simulation.push_pull import simulate_push_pull
from pace_fabric.simulation.records import CommitRecord, FabricRun
from pace_fabric.solver.capacity import Capacities

FABRIC_POLICIES = ("mlfabric-a", "mlfabric-s", "async", "chain", "ring", "tree", "ssp", "fedbuff", "quorum")


def simulate_fabric(scenario: FabricScenario, policy: str) -> FabricRun:
    """Simulate a whole run. Same scenario and policy, same run.

    Computations and links are drawn the same for every policy, so that runs can be compared in pairs.

    Raises
    ------
    InvalidOptions
        If there is no such policy, or the run would take minutes.
    """
    scenario.refuse_long([policy])
    match policy:
        case "mlfabric-a":
            return simulate_planned(scenario)
        case "mlfabric-s":
            return simulate_planned(scenario, synchronous=True)
        case "async" | "chain" | "ssp" | "fedbuff" | "quorum":
            return simulate_push_pull(scenario, policy)
        case "ring" | "tree":
            return simulate_collective(scenario, policy)
        case _:
            raise InvalidOptions(f'no policy "{policy}": there are {", ".join(FABRIC_POLICIES)}')


def simulate_collective(scenario: FabricScenario, kind: Literal["ring", "tree"]) -> FabricRun:
    """Simulate iterations that begin together, and whose collective begins when the slowest worker is ready.

    ``ring``: 2 (n - 1) / n of the bytes over the slowest link of the ring, divided by the flows that share
    it. ``tree``: a pipelined binary tree over the machines, reduced and then distributed; an inner node
    receives from two at once, so its way down carries twice the bytes.
    """
    run = FabricRun(policy=kind, duration_s=scenario.duration_s, num_workers=scenario.num_workers)
    links, compute = draw_links(scenario), Computations(scenario)
    members = scenario.machines if scenario.sum_hosts and scenario.flows == 1 else scenario.num_workers
    now, version = 0.0, 0
    while True:
        ready = now + max(compute.draw_s(worker) for worker in range(scenario.num_workers))
        if kind == "ring":
            volume = 2 * (members - 1) / members * scenario.update_bytes * scenario.flows
            now = carried_by(links, scenario, ready, volume, tree=False)
        else:
            volume = scenario.update_bytes * scenario.flows
            now = carried_by(links, scenario, ready, volume, tree=True)
            now = carried_by(links, scenario, now, volume, tree=True, down=True)
        if now > scenario.duration_s:
            return run
        run.computed += scenario.num_workers
        run.rounds_s.append(now)
        for worker in range(scenario.num_workers):
            run.commits.append(
                CommitRecord(
                    worker=worker,
                    version=version,
                    from_version=version,
                    num_updates=1,
                    planned_s=now,
                    at_s=now,
                )
            )
        version += scenario.num_workers


def carried_by(
    links: Capacities,
    scenario: FabricScenario,
    start_s: float,
    size_bytes: float,
    *,
    tree: bool,
    down: bool = False,
) -> float:
    """Return when a collective that began at `start_s` has moved its bytes over its slowest link.

    If that is after the end of the run, it may be any moment after the end.
    """
    now, left = start_s, size_bytes
    every = scenario.links.every_s
    children = np.zeros(scenario.machines)
    for machine in range(1, scenario.machines):
        children[(machine - 1) // 2] += 1
    while now <= scenario.duration_s:
        rates = rates_at(links, now)[: 2 * scenario.machines]
        up, way_down = rates[0::2], rates[1::2]
        if not tree:
            rate = float(rates.min()) if scenario.machines > 1 else np.inf
        else:
            many, one = (up, way_down) if down else (way_down, up)
            many = np.where(children > 0, many / np.maximum(children, 1), np.inf)
            rate = float(min(many.min(), one[1:].min())) if scenario.machines > 1 else np.inf
        change = (np.floor(now / every + 1e-9) + 1) * every
        if left <= rate * (change - now):
            return now + left / rate
        left -= rate * (change - now)
        now = change
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricCell:
    """One point: seconds for as many commits as there are workers, and what that costs."""

    delay_bound: int
    aggregators: int
    iteration_s: float
    ring_s: float
    speedup: float
    drop_rate: float
    mean_delay: float
    server_bytes_per_commit: float


def fabric_what_if(
    scenario: FabricScenario, bounds: Sequence[int], aggregators: Sequence[int]
) -> list[FabricCell]:
    """Simulate the asynchronous policy at every point; the same computations and links at each."""
    ring = simulate_fabric(scenario, "ring").iteration_s
    cells = []
    for bound in bounds or (scenario.delay_bound,):
        for most in aggregators or (scenario.machines,):
            there = scenario.model_copy(update={"delay_bound": bound, "aggregators": most})
            run = simulate_fabric(there, "mlfabric-a")
            cells.append(
                FabricCell(
                    delay_bound=bound,
                    aggregators=most,
                    iteration_s=run.iteration_s,
                    ring_s=ring,
                    speedup=ring / run.iteration_s,
                    drop_rate=run.drop_rate,
                    mean_delay=float(run.delays.mean()) if len(run.delays) else 0.0,
                    server_bytes_per_commit=run.server_bytes / max(run.num_committed, 1),
                )
            )
    return cells


def cells_csv(cells: Sequence[FabricCell]) -> str:
    """Return the cells as CSV."""
    return to_csv([asdict(cell) for cell in cells])


def cells_html(scenario: FabricScenario, cells: Sequence[FabricCell]) -> str:
    """Return one page with a table; it loads nothing from anywhere."""
    names = [field.name for field in fields(FabricCell)]
    fastest = min(cell.iteration_s for cell in cells)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    rows = []
    for cell in cells:
        values = "".join(f"<td>{getattr(cell, name):.4g}</td>" for name in names)
        rows.append(f"<tr{' class=best' if cell.iteration_s == fastest else ''}>{values}</tr>")
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;color:#1b1f24}"
        "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
        "th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #e4e7eb}.best{font-weight:600}"
    )
    title = escape(f"What if: {scenario.name}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head><body><h1>{title}</h1>"
        f"<p>{scenario.num_workers} workers on {scenario.machines} machines; times are for as many commits "
        f"as there are workers, and delays are in versions. The ring trains synchronously on the same "
        f"links.</p>"
        f"<table><tr>{head}</tr>{''.join(rows)}</table></body></html>\n"
    )
