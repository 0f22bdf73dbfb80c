"""TicTac's ranking: TIO, TAO and random order on workers of servers and on toy models; prints Markdown.

    python -m benchmarks papers.tictac_orders [--runs 1000]

Every run draws lognormal durations (5 % relative spread) for every op and transfer of every worker. Without
TicTac, each worker receives parameters in a random order of its own, drawn again for every run. A step ends
when the slowest worker ends. The straggler effect is the share of the step that the fastest worker waits.
"""

import numpy as np

from benchmarks.harness.conditions import study_parser
from pace.models import build
from pace.simulation.tictac import makespan_limits, ordering_speedup, tao, tio
from pace.simulation.worker import WorkerDag, parameter_server_worker, run_worker
from pace.solver.cost_curve import CostCurve

MODELS = {"vgg16": 64, "resnet50": 32, "inception-v3": 32}
WORKERS = (2, 4, 8, 16)
SERVERS = 4
SPREAD = 0.05
LATENCY_S, GBPS = 5e-5, 10.0


def worker_of(model: str) -> WorkerDag:
    """Return one worker whose parameters are spread over the servers."""
    profile = build(model, device_tflops=8.0, batch=MODELS[model], workers=2)
    # Each server's channel has its share of the worker's link.
    transfer = CostCurve.affine(LATENCY_S, 8 * SERVERS / (GBPS * 1e9))
    return parameter_server_worker(profile, servers=SERVERS, transfer=transfer)


def steps(dag: WorkerDag, order: str, runs: int, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return makespans of shape (runs, workers), and ordering efficiencies of the same shape."""
    random = np.random.default_rng(7)
    fixed = {"tio": tio, "tao": tao}[order](dag.transfers) if order != "random" else None
    sigma = np.sqrt(np.log1p(SPREAD**2))
    times, efficiencies = np.empty((runs, workers)), np.empty((runs, workers))
    for run in range(runs):
        for worker in range(workers):
            durations = dag.duration_s * np.exp(sigma * random.standard_normal(len(dag.names)) - sigma**2 / 2)
            shuffled = random.permutation(len(dag.recvs)).astype(np.float64)
            made = run_worker(dag, shuffled if fixed is None else fixed, durations_s=durations)
            times[run, worker] = made.makespan_s
            efficiencies[run, worker] = made.efficiency
    return times, efficiencies


def toy_worker(count: int, *, chain: bool) -> WorkerDag:
    """Return TicTac's Seq-n (a chain) or Par-n: ops of 1 s, each waiting for a transfer of 1 s of its own."""
    waits = [(at, count + at - 1) if chain and at else (at,) for at in range(count)]
    return WorkerDag(
        names=(*(f"recv/{at}" for at in range(count)), *(f"op/{at}" for at in range(count))),
        duration_s=np.ones(2 * count),
        resources=np.repeat([1, 0], count),
        predecessors=(*[()] * count, *waits),
        recvs=tuple(range(count)),
    )


def print_toys(runs: int) -> None:
    """Print the toy models of 32 ops: makespans of random orders, TIO and TAO between the limits; E and S."""
    print("| model | S | worst, s | random: mean, least, most | TIO | TAO | best, s | E: random | TAO |")
    print("| --- |" + " ---: |" * 8)
    random = np.random.default_rng(7)
    for name, chain in (("Seq-32", True), ("Par-32", False)):
        dag = toy_worker(32, chain=chain)
        busy = np.bincount(dag.resources, weights=dag.duration_s)
        worst, best = makespan_limits(busy)
        drawn = [run_worker(dag, random.permutation(32).astype(np.float64)) for _ in range(runs)]
        spans = [run.makespan_s for run in drawn]
        ranked = [run_worker(dag, order(dag.transfers)) for order in (tio, tao)]
        mean_efficiency = np.mean([run.efficiency for run in drawn])
        print(
            f"| {name} | {ordering_speedup(busy):.2f} | {worst:g} | {np.mean(spans):.1f}, {min(spans):g}, "
            f"{max(spans):g} | {ranked[0].makespan_s:g} | {ranked[1].makespan_s:g} | {best:g} "
            f"| {mean_efficiency:.2f} | {ranked[1].efficiency:.2f} |"
        )


def main() -> None:
    """Print two tables."""
    parser = study_parser(__doc__)
    parser.add_number("--runs", 1000, "number of simulated runs")
    runs = parser.parse_args().runs
    print(
        "| model | order | workers | step ms | spread | p95 over median | straggler effect | efficiency E |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in MODELS:
        dag = worker_of(model)
        for order in ("random", "tio", "tao"):
            # The runs of few workers are the first of those of many.
            times, efficiencies = steps(dag, order, runs, max(WORKERS))
            for workers in WORKERS:
                step = times[:, :workers].max(axis=1)
                waiting = (step - times[:, :workers].min(axis=1)) / step
                print(
                    f"| {model} | {order} | {workers} | {step.mean() * 1e3:.1f} "
                    f"| {step.std() / step.mean() * 100:.2f} % "
                    f"| {(np.percentile(step, 95) / np.median(step) - 1) * 100:.2f} % "
                    f"| {waiting.mean() * 100:.2f} % | {efficiencies[:, :workers].mean():.3f} |"
                )
    print()
    print_toys(runs)
