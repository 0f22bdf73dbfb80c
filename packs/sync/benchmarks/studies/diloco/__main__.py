"""Utilization of streaming DiLoCo over shaped links: predicted, and measured with our outer step over Gloo.

python -m benchmarks diloco --workers 2 --mbit 100 --periods 6

Needs root and iproute2. Every host has a link of `--mbit` Mbit/s. Compute is a sleep, so that workers do not
share the processor. Both plans run on the same hosts: PACE's, and torchft's rule with its best settings.
Three times are measured first, for the prediction: two all-reduces, to which the link's rate and latency are
fitted, and the outer step itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.prerequisites import require_network, require_packages
from benchmarks.studies.diloco.options import add_workers, read_options
from pace_sync.documents.outer_plan import OuterPlan
from pace_sync.documents.outer_sync import OuterLayer, OuterLink, OuterSync
from pace_sync.planning.outer.plan import plan_outer

PROGRAM = [sys.executable, "-m", "benchmarks.studies.diloco.rank"]
# The first periods begin with idle links.
WARM = 2


def main() -> None:
    """Measure both plans."""
    parser = study_parser(__doc__, writes_json=True)
    add_workers(parser, workers=2, step_s=0.05, megabytes=2.0, of="a layer")
    parser.add_number("--mbit", 100.0, "bandwidth of every link in Mbit/s")
    parser.add_number("--layers", 12, "number of equal layers")
    parser.add_number("--period", 40, "number of steps in a period")
    parser.add_number("--delay", 4, "largest delay of a fragment in steps")
    parser.add_number("--periods", 6, "number of periods, with two of warm-up")
    arguments = read_options(parser)
    if arguments.periods <= WARM:
        parser.error(f"--periods {arguments.periods}: expected more than {WARM}, which are not counted")
    require_packages("torch")
    require_network()
    numbers = int(arguments.megabytes * 1e6) // 4
    found: dict[str, Any] = {}
    with hosts([Link(rate_mbit_s=arguments.mbit)] * arguments.workers) as made:
        common = (list(made), arguments.layers, numbers, arguments.step_s)
        small_s, large_s, update_s = run("calibrate", *common, 1)
        share = 2 * (arguments.workers - 1) / arguments.workers
        per_byte = (large_s - small_s) / (numbers * 4 * (1 - 1 / 8)) / share
        call_s = max(large_s - numbers * 4 * share * per_byte, 0.0)
        problem = OuterSync(
            name="study",
            layers=tuple(
                OuterLayer(name=f"layer{number}", size_bytes=numbers * 4)
                for number in range(arguments.layers)
            ),
            workers=arguments.workers,
            step_s=arguments.step_s,
            period_steps=arguments.period,
            max_delay_steps=arguments.delay,
            update_s_per_byte=update_s / (arguments.layers * numbers * 4),
            links=(
                OuterLink(
                    name="wan",
                    bytes_per_s=1 / per_byte,
                    latency_s=call_s / (2 * (arguments.workers - 1)),
                ),
            ),
        )
        print(
            f"link: {8e-6 / per_byte:.1f} Mbit/s, {call_s * 1e3:.2f} ms a call; "
            f"outer step {update_s * 1e3:.1f} ms"
        )
        for name, torchft in (("pace", False), ("torchft", True)):
            plan = plan_outer(problem, torchft=torchft)
            seconds = measured(plan, *common, arguments.periods)
            compute = arguments.step_s * arguments.period
            share_of_compute = compute / median(seconds[WARM:])
            found[name] = {
                "fragments": len(plan.fragments),
                "predicted": plan.predicted.utilization,
                "measured": share_of_compute,
                "periods_s": seconds,
            }
            print(
                f"{name}: {len(plan.fragments)} fragments, utilization predicted "
                f"{plan.predicted.utilization:.4f}, measured {share_of_compute:.4f} "
                f"({share_of_compute / plan.predicted.utilization - 1:+.1%})"
            )
    write_json(arguments.json, found)


def measured(
    plan: OuterPlan, made: list[Host], layers: int, numbers: int, step_s: float, periods: int
) -> list[float]:
    """Return the seconds of each period of a plan, of the first worker."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_bytes(plan.to_json())
        return run(str(path), made, layers, numbers, step_s, periods)


def run(plan: str, made: list[Host], layers: int, numbers: int, step_s: float, periods: int) -> list[float]:
    """Run all workers; return the numbers that the first one prints."""
    started = []
    try:
        for rank, host in enumerate(made):
            options = (rank, len(made), made[0].address, plan, layers, numbers, step_s, periods)
            started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", host.namespace, *PROGRAM, *map(str, options)],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0"},
                )
            )
        said = started[0].communicate()[0]
        found: list[float] = json.loads(said)
        return found
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
