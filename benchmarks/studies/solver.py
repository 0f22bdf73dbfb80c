"""Speed of the solver, and gaps of its plans to the bound; prints tables and can write JSON.

    python -m benchmarks solver [--json OUT] [--quick]

Every time is a median of 20 runs (3 with --quick) after one warm-up run. Gaps are to the lower bound that
holds for every fusion and every order (``pace check`` computes it again).
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conditions import study_parser, write_json
from pace import Gradient, Op, Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.load import NO_LOAD
from pace.models import build, with_ratio
from pace.planning.frameworks.grouping_rules import ddp_buckets, mg_wfbp_groups, window_behind_barrier
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import fuse
from pace.solver import one_machine
from pace.solver.linear_program import lp
from pace.solver.one_machine import Instance

RATIOS = (0.5, 0.7, 1.0, 1.5, 3.0)
MODELS = {"vgg16": 64, "resnet50": 32, "transformer": 2048}
LATENCY_S = 3e-4


def median_s(run: Callable[[], object], repeats: int) -> float:
    """Return the median duration of `run` in seconds, after one call that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_instance(num_jobs: int) -> Instance:
    """Return jobs that keep the network about as busy as the window is long."""
    random = np.random.default_rng(num_jobs)
    return Instance(
        ready=random.random(num_jobs),
        processing=2 * random.random(num_jobs) / num_jobs,
        tail=random.random(num_jobs),
    )


def layered_profile(num_gradients: int, num_ops: int) -> Profile:
    """Return a model of one stream with random layers, communication as long as compute."""
    random = np.random.default_rng(num_gradients)
    half = num_ops // 2
    durations = random.exponential(1.0, num_ops)
    durations /= durations.sum()
    sizes = (random.lognormal(0, 1.5, num_gradients) * 1e5).astype(int) * 4 + 4
    producers = np.sort(random.integers(0, half, num_gradients))
    consumers = num_ops - 1 - producers
    waits: list[list[str]] = [[] for _ in range(num_ops)]
    for gradient, op in enumerate(consumers):
        waits[op].append(f"gradient {gradient}")
    return Profile(
        name=f"layered-{num_gradients}",
        workers=8,
        ops=tuple(
            Op(name=f"op {n}", duration_s=float(durations[n]), stream="compute", waits_for=tuple(waits[n]))
            for n in range(num_ops)
        ),
        gradients=tuple(
            Gradient(name=f"gradient {n}", size_bytes=int(sizes[n]), producer=f"op {producers[n]}")
            for n in range(num_gradients)
        ),
        allreduce=AffineAllReduce(
            latency_s=LATENCY_S / num_gradients * 164, seconds_per_byte=1.0 / float(sizes.sum())
        ),
    )


def measure_oracles(repeats: int) -> dict[str, float]:
    """Time longest tail first at two sizes, and against the LP on one slotted instance."""
    small, large = random_instance(164), random_instance(10_000)
    horizon = one_machine.solve(small).ends.max()
    slotted = small.in_slots(horizon / 1500)
    fast = median_s(lambda: one_machine.solve(slotted), repeats)
    slow = median_s(lambda: lp.solve(slotted), max(3, repeats // 4))
    assert one_machine.solve(slotted).objective == lp.solve(slotted).objective
    return {
        "jackson, 164 jobs": median_s(lambda: one_machine.solve(small), repeats),
        "jackson, 10,000 jobs": median_s(lambda: one_machine.solve(large), repeats),
        "jackson, 164 jobs, 1,500 slots": fast,
        "lp, 164 jobs, 1,500 slots": slow,
    }


def measure_optimize(repeats: int) -> dict[str, float]:
    """Time whole optimisations, profile loading excluded."""
    times = {}
    for gradients, ops in ((164, 1061), (1000, 10_000), (10_000, 100_000)):
        start = time.perf_counter()
        profile = layered_profile(gradients, ops)
        profile.timing, profile.sha256, profile.fingerprint  # noqa: B018  # part of loading
        loading = time.perf_counter() - start
        label = f"{gradients:,} gradients, {ops:,} ops"
        times[f"load, {label}"] = loading
        plain = profile.replace(load=NO_LOAD)
        plain.timing, plain.sha256, plain.fingerprint  # noqa: B018  # part of loading
        for what, each in (("optimize", profile), ("optimize without load", plain)):
            times[f"{what}, {label}"] = median_s(lambda p=each: optimize(p), repeats)  # type: ignore[misc]
    transformer = with_ratio(model("transformer", 1), 1.0)
    times["fusion paper, every number of groups, 164 gradients"] = median_s(
        lambda: fuse(FusionProblem.of(transformer), Options(fusion="paper")), repeats
    )
    return times


def model(name: str, streams: Any) -> Profile:
    """Return a bundled architecture's profile at 5.6 TFLOP/s, 8 workers."""
    return build(name, device_tflops=5.6, batch=MODELS[name], workers=8, streams=streams)


def gaps(profile: Profile) -> dict[str, float]:
    """Return each rule's gap to the bound: the window over the bound, less one.

    All but "under load" is planned for windows without load, which the bound is about.
    """
    under_load = optimize(profile)
    profile = profile.replace(load=NO_LOAD)
    schedule = optimize(profile)
    lower = schedule.predicted.lower_bound_s
    problem = FusionProblem.of(profile)

    def ideal(options: Options) -> float:
        buffers = problem.buffers(fuse(problem, options).partitions[0])
        return max(problem.compute_s, one_machine.solve(buffers.instance(problem.cost)).objective)

    windows = {
        "optimal, ideal": ideal(Options()),
        "optimal": schedule.predicted.iteration_s,
        "under load": under_load.predicted.iteration_s,
        "paper, ideal": ideal(Options(fusion="paper")),
        "paper": optimize(profile, Options(fusion="paper")).predicted.iteration_s,
        "best FIFO": optimize(profile, Options(framework="horovod")).predicted.iteration_s,
        "MG-WFBP": window_behind_barrier(problem, mg_wfbp_groups(problem), problem.cost),
        "DDP": window_behind_barrier(problem, ddp_buckets(problem), problem.cost),
    }
    return {rule: window / lower - 1 for rule, window in windows.items()}


def measure_gaps() -> list[dict[str, Any]]:
    """Return gaps of every rule on every bundled model, ratio, and with one, no and two streams."""
    rows = []
    for name in MODELS:
        for streams in (1, 0, 2):
            for ratio in RATIOS:
                profile = with_ratio(model(name, streams), ratio)
                rows.append({"model": name, "streams": streams, "ratio": ratio, **gaps(profile)})
    return rows


def peak_memory_bytes() -> int:
    """Return the peak resident memory of a process that optimises the largest profile."""
    child = [sys.executable, "-m", "benchmarks", "solver", "--largest-only"]
    return int(subprocess.run(child, check=True, capture_output=True, text=True).stdout)


def report(results: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    times = results["times_s"]
    table = Table(title="Times, medians", box=None, title_justify="left")
    table.add_column("what")
    table.add_column("ms", justify="right")
    for what, seconds in times.items():
        table.add_row(what, f"{seconds * 1e3:,.3f}")
    console.print(table)
    speedup = times["lp, 164 jobs, 1,500 slots"] / times["jackson, 164 jobs, 1,500 slots"]
    console.print(f"jackson is {speedup:,.0f} times as fast as the LP on the same slotted instance")
    console.print(f"peak memory with 10,000 gradients: {results['peak_memory_bytes'] / 1e6:,.0f} MB\n")
    table = Table(title="Gap to the bound, %", box=None, title_justify="left")
    rows = results["gaps"]
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        cells = [str(row[key]) for key in ("model", "streams", "ratio")]
        table.add_row(*cells, *(f"{max(0.0, gap) * 100:.2f}" for gap in list(row.values())[3:]))
    console.print(table)


def main() -> None:
    """Run everything and print it."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("--quick", action="store_true", help="take the median of 3 runs instead of 20")
    parser.add_argument("--largest-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.largest_only:
        optimize(layered_profile(10_000, 100_000))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    repeats = 3 if arguments.quick else 20
    results = {
        "repeats": repeats,
        "times_s": measure_oracles(repeats) | measure_optimize(repeats),
        "peak_memory_bytes": peak_memory_bytes(),
        "gaps": measure_gaps(),
    }
    report(results, Console(width=140))
    write_json(arguments.json, results)
