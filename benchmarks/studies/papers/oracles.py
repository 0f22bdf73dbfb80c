"""The PACE paper's search priced by three oracles: longest tail first, the LP by HiGHS, the LP by PuLP.

    python -m benchmarks papers.oracles [--model NAME ...] [--momentum] [--json OUT]

Every number of groups R from 1 to N is priced, without the search's own cut-off, for VGG16 (N = 32), ResNet50
(157) and the Transformer (164). Communication takes as long as compute. All three must give the same window.
Seconds are those of the processor, CBC's process included, so that other work on the machine does not count.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conditions import study_parser, write_json
from pace import optimize
from pace.models import build, with_ratio
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import by_momentum
from pace.solver import one_machine
from pace.solver.linear_program import lp, lp_pulp
from pace.solver.one_machine import Instance, Solution
from pace.solver.partition import max_min_partitions

BATCHES = {"vgg16": 64, "resnet50": 32, "transformer": 2048}
DEVICE_TFLOPS = 5.65
WORKERS = 8
SLOTS = 400
SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All R of one model by one oracle."""

    model: str
    num_gradients: int
    oracle: str
    num_instances: int
    most_variables: int
    total_s: float
    slowest_s: float
    best_num_groups: int


def processor_s() -> float:
    """Return what this process and those that it waited for have used."""
    return time.process_time() + sum(os.times()[2:4])


def instances_of(model: str) -> list[Instance]:
    """Return the slotted instance of every number of groups; the window is about 400 slots long."""
    built = build(model, device_tflops=DEVICE_TFLOPS, batch=BATCHES[model], workers=WORKERS)
    profile = with_ratio(built, 1.0)
    slot_s = optimize(profile).predicted.iteration_s / SLOTS
    problem = FusionProblem.of(profile)
    of_all = problem.chain_of(problem.classes()[0])
    trials = max_min_partitions(of_all.sizes)
    return [of_all.fuse(cuts, problem.cost).in_slots(slot_s) for cuts in trials]


def measure(model: str) -> list[Row]:
    """Price every R by every oracle; their windows must be equal."""
    oracles: dict[str, Callable[[Instance], Solution]] = {
        "longest tail first": one_machine.solve,
        "LP, HiGHS": lp.solve,
        "LP, PuLP with CBC": lp_pulp.oracle(),
    }
    instances = instances_of(model)
    one_machine.solve(instances[0])  # compiles
    variables = max(map(lp.num_variables, instances))
    rows = []
    windows: list[float] = []
    for name, solve in oracles.items():
        found, seconds = [], []
        for instance in instances:
            start_s = processor_s()
            found.append(solve(instance).objective)
            seconds.append(processor_s() - start_s)
        windows = windows or found
        if found != windows:
            raise AssertionError(f"{model}: {name} differs from longest tail first")
        rows.append(
            Row(
                model=model,
                num_gradients=len(instances),
                oracle=name,
                num_instances=len(found),
                most_variables=variables if name.startswith("LP") else 0,
                total_s=sum(seconds),
                slowest_s=max(seconds),
                best_num_groups=found.index(min(found)) + 1,
            )
        )
    return rows


def momentum(model: str) -> tuple[float, float, float]:
    """Search R by momentum over its logarithm, on a budget of a quarter of all R.

    Returns
    -------
    tuple of float
        Mean number of different R that were priced, the share of searches that found the best window, and the
        largest excess over it.
    """
    windows = [one_machine.solve(instance).objective for instance in instances_of(model)]
    best = min(windows)
    priced, excess = [], []
    for seed in range(SEEDS):
        tried = by_momentum(len(windows), lambda num_groups: windows[num_groups - 1], seed)
        priced.append(len(tried))
        excess.append(min(tried.values()) / best - 1)
    return float(np.mean(priced)), float(np.mean(np.array(excess) == 0)), max(excess)


def main() -> None:
    """Measure, and print the table."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "--model",
        action="append",
        choices=list(BATCHES),
        help="model to plan; repeat for several (default: all)",
    )
    parser.add_argument(
        "--momentum", action="store_true", help="only compare the search by momentum with trying every R"
    )
    arguments = parser.parse_args()
    if arguments.momentum:
        print("| model | N | R priced by momentum | best found | largest excess |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for model in arguments.model or BATCHES:
            priced, found, excess = momentum(model)
            count = len(instances_of(model))
            print(f"| {model} | {count} | {priced:.1f} | {found:.0%} | {excess:.2%} |", flush=True)
        return
    rows = [row for model in arguments.model or BATCHES for row in measure(model)]
    table = Table(box=None)
    for heading in ("model", "N", "oracle", "all R, s", "slowest R, ms", "most variables", "best R"):
        table.add_column(heading, justify="left" if heading in ("model", "oracle") else "right")
    for row in rows:
        table.add_row(
            row.model,
            str(row.num_gradients),
            row.oracle,
            f"{row.total_s:,.4f}",
            f"{row.slowest_s * 1e3:,.3f}",
            f"{row.most_variables:,}" if row.most_variables else "",
            str(row.best_num_groups),
        )
    Console(width=120).print(table)
    write_json(arguments.json, {"slots": SLOTS, "rows": [asdict(row) for row in rows]})
