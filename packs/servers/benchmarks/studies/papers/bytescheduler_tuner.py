"""ByteScheduler (SOSP 2019): Figs. 9 to 12 and 14 and the balance of servers; prints Markdown.

    python -m benchmarks papers.bytescheduler_tuner [--quick] [--only trials] [--layers vgg16=graph.txt]

Machines of eight GPUs add their gradients locally, so a worker here is a machine. Figs. 10 to 12 compare the
frameworks' own order with ByteScheduler, tuned by ten trials, on five models. MXNet has no barrier between
steps, with servers or with NCCL's ring. TensorFlow's servers and PyTorch's ring have one.
"""

from collections.abc import Callable, Iterable
from statistics import mean

import numpy as np

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.bytescheduler_servers import COMPUTE_S, LAYERS, servers, trained, window
from benchmarks.studies.papers.profiles import add_layers
from pace import Profile, SimulationOptions
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import RingAllReduce
from pace.kinds.tuning import Tuned, tune
from pace.simulation import make_policy, run_policy
from pace.solver.knob_search import SEARCHES, Search

# TCP does not fill a link of 100 Gb/s; RDMA nearly does. NCCL's latency is not in the paper.
TCP_GBPS, RDMA_GBPS = 25.0, 100.0
RING_LATENCY_S = 30e-6
MACHINES = (2, 4, 8)
TABLES = ("course", "frameworks", "balance", "trials")
EXCHANGES = ("servers", "ring")
MOST_TRIALS = 40
FINE_TRIALS = 225


def per_connection(cluster: Cluster, seed: int = 0) -> SimulationOptions:
    """Return simulations in which each connection has a credit of its own."""
    return SimulationOptions(cluster=cluster, knobs={"credit_of": "connection"}, seed=seed)


def on_servers(model: str, machines: int, gbps: float) -> tuple[Profile, Cluster]:
    """Return a model on so many machines and as many servers."""
    exchange = servers(gbps).exchange.model_copy(update={"servers": machines})
    return trained(model).replace(workers=machines), Cluster(name=f"{gbps:g} Gb/s", exchange=exchange)


def on_ring(model: str, machines: int, gbps: float) -> Profile:
    """Return a model on a ring of so many machines."""
    ring = RingAllReduce(bandwidth_bytes_per_s=gbps * 1e9 / 8, latency_s=RING_LATENCY_S)
    return trained(model).replace(workers=machines, allreduce=ring)


def gain_on_servers(model: str, machines: int, gbps: float, *, barrier: bool) -> float:
    """Return how much faster ByteScheduler is than the framework on servers."""
    profile, cluster = on_servers(model, machines, gbps)
    keys = "round-robin" if barrier else "mxnet"
    plain = window(profile, cluster, "fifo", keys=keys, barrier=barrier)
    found = tune(profile, "bytescheduler", per_connection(cluster), num_trials=10)
    return plain / found.best.iteration_s - 1


def gain_on_ring(model: str, machines: int, gbps: float, *, barrier: bool) -> float:
    """Return how much faster ByteScheduler is than the framework on a ring: tensors, or DDP's buckets."""
    profile = on_ring(model, machines, gbps)
    plain = run_policy(profile, make_policy("ddp" if barrier else "fifo", barrier=barrier)).iteration_s
    return plain / tune(profile, "bytescheduler", num_trials=10).best.iteration_s - 1


FRAMEWORKS: dict[str, Callable[[str, int], float]] = {
    "MXNet, servers, TCP": lambda model, n: gain_on_servers(model, n, TCP_GBPS, barrier=False),
    "MXNet, servers, RDMA": lambda model, n: gain_on_servers(model, n, RDMA_GBPS, barrier=False),
    "TensorFlow, servers, TCP": lambda model, n: gain_on_servers(model, n, TCP_GBPS, barrier=True),
    "MXNet, ring, RDMA": lambda model, n: gain_on_ring(model, n, RDMA_GBPS, barrier=False),
    "PyTorch, ring, TCP": lambda model, n: gain_on_ring(model, n, TCP_GBPS, barrier=True),
}


def frameworks(models: Iterable[str]) -> None:
    """Print Figs. 10 to 12, with AlexNet and VGG19 beside their three models."""
    print(f"| model | what | {' | '.join(f'{8 * n} GPUs' for n in MACHINES)} |")
    print("| --- | --- | ---: | ---: | ---: |")
    for model in models:
        for name, gain in FRAMEWORKS.items():
            cells = " | ".join(f"{gain(model, n) * 100:.0f} %" for n in MACHINES)
            print(f"| {model} | {name} | {cells} |", flush=True)


def course() -> None:
    """Print Fig. 9: what Bayesian optimization tries on VGG16, beside a search that begins at random."""
    profile, cluster = on_servers("vgg16", 4, 10)
    print("| trial | partition MB | credit MB | ms | best so far | without a start: best so far |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    started = tune(profile, "bytescheduler", per_connection(cluster), num_trials=15).trials
    anywhere = without_start(profile, cluster, "bayes", 15, seed=0)
    for number, trial in enumerate(started, start=1):
        sizes = " | ".join(f"{trial.knobs[knob] / 1e6:.2f}" for knob in ("partition_bytes", "credit_bytes"))
        best = min(each.iteration_s for each in started[:number])
        print(
            f"| {number} | {sizes} | {trial.iteration_s * 1e3:.1f} | {best * 1e3:.1f} "
            f"| {min(anywhere[:number]) * 1e3:.1f} |"
        )


def without_start(
    profile: Profile, cluster: Cluster, search: Search, num_trials: int, seed: int
) -> list[float]:
    """Return the windows of a search that is not told the size in theory, as the paper's are not."""
    found = tune(
        profile,
        "bytescheduler",
        per_connection(cluster, seed),
        search=search,
        num_trials=num_trials,
        informed=False,
    )
    return [trial.iteration_s for trial in found.trials]


def trials_to(windows_s: list[float], best_s: float, share: float) -> int:
    """Return after how many trials a search had `share` of the best speed; one more than all if never."""
    reached = np.nonzero(np.array(windows_s) * share <= best_s)[0]
    return int(reached[0]) + 1 if len(reached) else len(windows_s) + 1


def search_costs(models: Iterable[str], exchanges: Iterable[str], seeds: int) -> None:
    """Print Fig. 14: trials to 95 and 99 % of the best speed that any search or a fine grid finds."""
    kinds = ("bayes, from theory", *SEARCHES)
    print(f"| model | exchange | {' | '.join(kinds)} |")
    print(f"| --- | --- | {' | '.join('---:' for _ in kinds)} |")
    for model in models:
        for exchange in exchanges:
            searched = _searches(model, exchange, seeds)
            best = min(min(times) for runs in searched.values() for times in runs)
            cells = []
            for kind in kinds:
                counts = [
                    [trials_to(times, best, share) for times in searched[kind]] for share in (0.95, 0.99)
                ]
                cells.append(", ".join(_count(each) for each in counts))
            print(f"| {model} | {exchange} | {' | '.join(cells)} |", flush=True)


def _searches(model: str, exchange: str, seeds: int) -> dict[str, list[list[float]]]:
    """Return the windows of every search, and of a fine grid."""
    cluster = None
    if exchange == "servers":
        profile, cluster = on_servers(model, 4, 10)
    else:
        profile = on_ring(model, 4, 10)

    def windows(search: Search, num_trials: int, seed: int, *, informed: bool = False) -> list[float]:
        found: Tuned = tune(
            profile,
            "bytescheduler",
            SimulationOptions(seed=seed) if cluster is None else per_connection(cluster, seed),
            search=search,
            num_trials=num_trials,
            informed=informed,
        )
        return [trial.iteration_s for trial in found.trials]

    made: dict[str, list[list[float]]] = {
        search: [windows(search, MOST_TRIALS, seed) for seed in range(1 if search == "grid" else seeds)]
        for search in SEARCHES
    }
    made["bayes, from theory"] = [windows("bayes", MOST_TRIALS, seed, informed=True) for seed in range(seeds)]
    made["fine grid"] = [windows("grid", FINE_TRIALS, 0)]
    return made


def _count(trials: list[int]) -> str:
    return f"{mean(trials):.1f}" + ("+" if max(trials) > MOST_TRIALS else "")


def balance(models: Iterable[str]) -> None:
    """Print what of a gain is balance: the fullest server's share, and three steps from whole tensors on."""
    print("| model | GPUs | fullest server over the mean | parts | order | together |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model in models:
        for machines in (2, 4):
            profile, cluster = on_servers(model, machines, TCP_GBPS)
            sizes = np.array([gradient.size_bytes for gradient in profile.gradients])
            held = np.bincount(np.arange(len(sizes)) % machines, weights=sizes, minlength=machines)
            found = tune(profile, "bytescheduler", per_connection(cluster), num_trials=10).best
            part = int(found.knobs["partition_bytes"])
            whole = window(profile, cluster, "fifo", keys="round-robin")
            parts = window(profile, cluster, "fifo", keys="parts", partition_bytes=part)
            gains = (whole / parts, parts / found.iteration_s, whole / found.iteration_s)
            shown = " | ".join(f"{(gain - 1) * 100:.0f} %" for gain in gains)
            print(f"| {model} | {8 * machines} | {held.max() / held.mean():.2f} | {shown} |", flush=True)


def main() -> None:
    """Print all tables, or the chosen ones."""
    parser = study_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="run each search with two seeds instead of ten")
    parser.add_argument(
        "--only", nargs="+", choices=TABLES, default=TABLES, help="print only these tables (default: all)"
    )
    parser.add_argument(
        "--exchange",
        nargs="+",
        choices=EXCHANGES,
        default=EXCHANGES,
        help="exchanges for which trials are counted (default: %(default)s)",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(COMPUTE_S),
        default=list(COMPUTE_S),
        help="models to tune (default: %(default)s)",
    )
    add_layers(parser)
    given = parser.parse_args()
    LAYERS.update(given.layers)
    if "course" in given.only:
        print("\n### Fig. 9\n")
        course()
    if "frameworks" in given.only:
        print("\n### Figs. 10 to 12: gain of ByteScheduler\n")
        frameworks(given.models)
    if "balance" in given.only:
        print("\n### Balance of servers\n")
        balance(given.models)
    if "trials" in given.only:
        print("\n### Fig. 14: trials to 95 and 99 % of the best speed\n")
        search_costs(given.models, given.exchange, 2 if given.quick else 10)
