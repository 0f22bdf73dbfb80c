"""A compiled sharded model over shaped links: PACE's plans, no pass, Inductor's passes, and eager FSDP2.

sudo .venv/bin/python -m benchmarks compiled_sharding --ranks 2 --mbit 500

Needs root, iproute2 and a C++ compiler. Every rank is on a host of its own and computes on one core. Forward
and backward pass are timed; contenders take turns. Inductor's pass gets the times that PACE measured.
"""

import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.processes import Ranks, ranks
from benchmarks.harness.network.rates import verify_rates
from benchmarks.harness.prerequisites import RankFailed, require_network
from benchmarks.studies.compiled_sharding import LABELS
from benchmarks.studies.compiled_sharding.model import HEADS
from benchmarks.studies.compiled_sharding.rank import Costs, start
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph, parse_graph
from pace.documents.schedule import Schedule, parse_schedule
from pace.kinds.comparison import simulate

POLICIES = {"none": "as-traced", "inductor": "inductor"}
COMPILE_S = 900.0
PORT = 29600


def main() -> int:
    """Compile every contender, let them take turns, and print a table."""
    arguments = _arguments()
    require_network()
    try:
        with hosts([Link(rate_mbit_s=arguments.mbit)] * arguments.ranks) as made, ExitStack() as stack:
            verify_rates(made)
            found = _measure(list(made), arguments, stack)
    except RankFailed as error:
        print(f"compiled_sharding: {error}", file=sys.stderr)
        return 3
    _print(found)
    write_json(arguments.json, found)
    return 0


def _arguments() -> Any:
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "--ranks",
        type=int,
        choices=(2, 4),
        default=2,
        help="number of ranks, one on each host (default: %(default)s)",
    )
    parser.add_argument("--plans", type=Path, help="folder for PACE's graphs and plans (default: none)")
    parser.add_number("--mbit", 500.0, "bandwidth of every link in Mbit/s")
    parser.add_number("--blocks", 8, "number of transformer blocks")
    parser.add_number("--width", 384, "width of the model")
    parser.add_number("--sequences", 4, "number of sequences in a rank's batch")
    parser.add_number("--tokens", 128, "number of tokens in a sequence")
    parser.add_number("--rounds", 5, "number of measurements of each contender")
    parser.add_number("--steps", 3, "number of steps in a measurement")
    arguments = parser.parse_args()
    if arguments.plans and arguments.plans.exists() and not arguments.plans.is_dir():
        parser.error(f"--plans {arguments.plans}: it is a file; name a folder")
    if arguments.width < 1 or arguments.width % HEADS:
        parser.error(f"--width {arguments.width}: expected a multiple of {HEADS}")
    for name in ("blocks", "sequences", "tokens", "rounds", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: expected at least 1")
    return arguments


def _measure(made: list[Host], arguments: Any, stack: ExitStack) -> dict[str, Any]:
    """Return the seconds of each contender's steps, predictions, and whether weights are equal."""
    cache = stack.enter_context(tempfile.TemporaryDirectory())
    shape = (arguments.sequences, arguments.tokens)
    running: dict[str, Ranks] = {}
    names = tuple(LABELS)
    plans: list[tuple[CollectiveGraph, Schedule]] = []
    costs: Costs = {}
    for number, name in enumerate(names):
        running[name] = stack.enter_context(
            ranks(
                name,
                made,
                start,
                *(made, PORT + number, name, arguments.blocks, arguments.width, shape, costs),
                environment={"TORCHINDUCTOR_CACHE_DIR": f"{cache}/{number}"},
                undisturbed=False,
            )
        )
        _tell(f"compiling for {name}")
        running[name].ask("train", 2, timeout_s=COMPILE_S)
        if name == "pace":
            documents = running[name].ask("documents")[0]
            if arguments.plans:
                _write(arguments.plans, documents)
            plans = [(parse_graph(graph), parse_schedule(schedule)) for graph, schedule in documents]
            costs = _costs(plans)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(arguments.rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            steps = running[name].ask("train", 1 + arguments.steps, timeout_s=COMPILE_S)
            seconds[name] += [max(step) for step in zip(*steps, strict=True)][1:]
        _tell(f"turn {turn + 1} of {arguments.rounds}")
    weights = {name: each.ask("weights") for name, each in running.items()}
    return {
        "options": {name: value for name, value in vars(arguments).items() if name not in ("json", "plans")},
        "model_bytes": sum(shard.nbytes for each in weights["none"] for shard in each),
        "seconds": seconds,
        "predicted_s": _predicted(plans),
        "compute_slowdown": plans[0][0].compute_slowdown,
        "compute_s": sum(schedule.predicted.compute_s for _, schedule in plans),
        "bound_s": sum(schedule.predicted.lower_bound_s or 0.0 for _, schedule in plans),
        "calls": [len(schedule.transfers) for _, schedule in plans],
        "communication_s": sum(_communication_s(graph) for graph, _ in plans),
        "weight_difference": {name: _difference(each, weights["none"]) for name, each in weights.items()},
    }


def _write(folder: Path, documents: list[tuple[bytes, bytes]]) -> None:
    """Write each graph and its plan, as ``pace check`` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (graph, plan) in enumerate(documents):
        (folder / f"graph{number}.json").write_bytes(graph)
        (folder / f"plan{number}.json").write_bytes(plan)


def _costs(plans: list[tuple[CollectiveGraph, Schedule]]) -> Costs:
    """Return what collectives cost, as measured for the graph that has most of them."""
    return {
        each.op: each.cost
        for graph, _ in sorted(plans, key=lambda plan: len(plan[0].nodes))
        for communicator in graph.communicators
        for each in communicator.costs
        if isinstance(each.cost, SampledAllReduce)  # as all are that were measured
    }


def _communication_s(graph: CollectiveGraph) -> float:
    """Return the seconds of a graph's collectives, one by one."""
    costs = {each.name: (each.ranks, each.costs[0].cost) for each in graph.communicators}
    total = 0.0
    for node in graph.nodes:
        if node.collective is not None:
            number, cost = costs[node.collective.communicator]
            total += float(cost.cost(number)(float(node.collective.input_bytes)))
    return total


def _predicted(plans: list[tuple[CollectiveGraph, Schedule]]) -> dict[str, float]:
    """Return the seconds of the forward and backward pass under each contender."""
    found = {"pace": sum(schedule.predicted.iteration_s for _, schedule in plans)}
    for name, policy in POLICIES.items():
        found[name] = sum(simulate(graph, policy)[policy].iteration_s for graph, _ in plans)
    return found


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two weights of the same place; they must be numbers."""
    differences = [
        float(abs(one - other).max())
        for rank, of_rank in zip(ours, theirs, strict=True)
        for one, other in zip(rank, of_rank, strict=True)
    ]
    if not all(map(math.isfinite, differences)):
        raise SystemExit("the model diverged: its weights say nothing")
    return max(differences)


def _print(found: dict[str, Any]) -> None:
    seconds, predicted = found["seconds"], found["predicted_s"]
    whole = median(seconds["none"])
    best = min(median(each) for name, each in seconds.items() if name != "pace")
    print(
        f"{found['model_bytes'] / 1e6:.0f} MB of parameters; compute {found['compute_s']:.3f} s, "
        f"{found['compute_slowdown']:.2f} times as long beside collectives; "
        f"collectives {found['communication_s']:.3f} s, bound {found['bound_s']:.3f} s; "
        f"PACE's plans have {' and '.join(map(str, found['calls']))} calls"
    )
    print(f"{'':24} {'median s':>9} {'least':>7} {'most':>7} {'of none':>8} {'predicted':>9} {'error':>7}")
    for name, each in seconds.items():
        middle = median(each)
        line = f"{LABELS[name]:24} {middle:9.3f} {min(each):7.3f} {max(each):7.3f} {middle / whole:8.3f}"
        if name in predicted:
            line += f" {predicted[name]:9.3f} {predicted[name] / middle - 1:+7.1%}"
        print(line)
    print(f"PACE takes {median(seconds['pace']) / best:.3f} of the best other")
    for name, difference in found["weight_difference"].items():
        if difference:
            print(f"{LABELS[name]}: weights differ from those of no pass by up to {difference:.2g}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
