"""TicTac's ranking: TIO, TAO and random order on a parameter server's workers; prints Markdown.

    python -m benchmarks papers.tictac_orders [--runs 1000]

Every run draws lognormal durations (5 % relative spread) for every op and transfer of every worker. Without
TicTac, each worker receives parameters in a random order of its own, drawn again for every run. A step ends
when the slowest worker ends. The straggler effect is the share of the step that the fastest worker waits.
"""

import numpy as np

from benchmarks.harness.conditions import study_parser
from pace.models import build
from pace.simulation.tictac import tao, tio
from pace.simulation.worker import WorkerDag, parameter_server_worker, run_worker
from pace.solver.cost import CostCurve

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


def main() -> None:
    """Print one table."""
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
