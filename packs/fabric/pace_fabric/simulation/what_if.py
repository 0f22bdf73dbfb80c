"""One scenario over delay bounds and numbers of aggregators: what each would gain over a ring."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from html import escape

from pace.whatif.results import to_csv
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.run import simulate_fabric


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
