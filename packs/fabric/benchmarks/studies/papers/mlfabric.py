"""MLfabric's evaluation in the simulator; prints Markdown.

    python -m benchmarks papers.mlfabric [--seconds 40] [--seeds 2] [--only planning,order-search]

Only the planning times are measured. Runs are simulated, with the paper's 30 workers on 15 machines.
"""

import time
from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np

from benchmarks.harness.conditions import study_parser
from pace_fabric.documents.scenario import FabricScenario, RedrawnRates, Straggling
from pace_fabric.simulation import FabricRun, simulate_fabric
from pace_fabric.solver.aggregation import aggregate
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.exact import solve_exactly
from pace_fabric.solver.joint import solve_jointly
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.search import search_order
from pace_fabric.solver.updates import Updates

RATES = (1.25e8, 3.125e8, 4.125e8, 6.25e8, 1.25e9)
NETWORKS = {"N1": (0, 0, 0, 0.1, 0.9), "N2": (0, 0.1, 0.1, 0.1, 0.7), "N3": (0.5, 0, 0, 0, 0.5)}
SKEWED = (0.2, 0, 0, 0, 0.8)
COMPUTE = {"C1": (10.0, 2.0), "C2": (10.0, 4.0), "C3": (4.0, 2.0)}
CLAIMS = {"N1": (1.74, 2.96, 1.90), "N2": (1.23, 2.0, 1.33), "N3": (1.42, 2.32, 1.42)}
RESNET50, RESNET152 = 100_000_000, 240_000_000
LDA = 100 * 102_660 * 8  # topics times words, doubles
WORKERS, ITERATIONS = 30, 8000
# Fitted: 8,000 checkpoints of these seconds are the 76 minutes of section 7.3.
CHECKPOINT_S = 76 * 60 / ITERATIONS


class Runs:
    """Simulates and keeps what was simulated."""

    def __init__(self, seconds: float, seeds: int) -> None:
        self._seconds = seconds
        self._seeds = seeds
        self._kept: dict[tuple[str, str], FabricRun] = {}

    def of(
        self, policy: str, network: str | Sequence[float], compute: str, **knobs: object
    ) -> list[FabricRun]:
        """Return a run for each seed."""
        shares = NETWORKS[network] if isinstance(network, str) else network
        percent, slowdown = COMPUTE[compute]
        runs = []
        for seed in range(self._seeds):
            scenario = FabricScenario.model_validate(
                {
                    "links": RedrawnRates(bytes_per_s=RATES, shares=tuple(shares)),
                    "straggling": Straggling(percent=percent, slowdown=slowdown),
                    "duration_s": self._seconds,
                    "seed": seed,
                    **knobs,
                }
            )
            key = (policy, scenario.model_dump_json())
            if key not in self._kept:
                self._kept[key] = simulate_fabric(scenario, policy)
            runs.append(self._kept[key])
        return runs

    def iteration_s(
        self, policy: str, network: str | Sequence[float], compute: str, **knobs: object
    ) -> float:
        """Return the mean time for 30 commits."""
        return mean(run.iteration_s for run in self.of(policy, network, compute, **knobs))

    def computed_s(self, policy: str, network: str, compute: str, **knobs: object) -> float:
        """Return the mean time for 30 computed updates."""
        return mean(run.computed_iteration_s for run in self.of(policy, network, compute, **knobs))

    def drop_rate(self, policy: str, network: str, compute: str, **knobs: object) -> float:
        """Return the mean share of drops."""
        return mean(run.drop_rate for run in self.of(policy, network, compute, **knobs))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a Markdown table."""
    names = list(head)
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row) + " |")
    print()


def formulas() -> None:
    """Section 2: times of a ring and of a server."""
    rate = 1.25e9
    ring = 2 * 29 / 30 * RESNET50 / rate
    print("## Section 2: formulas\n")
    table(
        ("what", "claim, ms", "here, ms"),
        (
            ("ring of 30, two flows on each link", 320, round(2 * ring * 1e3)),
            ("ring, workers of a host summed", 160, round(2 * 14 / 15 * RESNET50 / rate * 1e3)),
            ("LDA (82 MB): 30 pushes into one server", 1800, round(30 * LDA / rate * 1e3)),
        ),
    )


def stragglers(runs: Runs) -> None:
    """Section 2: what stragglers and slow links cost a synchronous ring."""
    calm = runs.iteration_s("ring", (0, 0, 0, 0, 1), "C3", straggling=Straggling())
    rough = runs.iteration_s("ring", "N1", "C2")
    one = runs.iteration_s("ring", (0, 0, 0, 0, 1), "C3", straggling=Straggling(), flows=1)
    rough_one = runs.iteration_s("ring", "N1", "C2", flows=1)
    print("## Section 2: 10 % of computations 4 x slower, 10 % of links at 5 Gb/s\n")
    table(
        ("flows on a link", "iteration calm, s", "rough, s", "ratio", "claim"),
        ((2, calm, rough, rough / calm, 8), (1, one, rough_one, rough_one / one, 8)),
    )


def table_2(runs: Runs) -> None:
    """Table 2 under four readings."""
    readings: dict[str, tuple[dict[str, object], int, bool]] = {
        "X: hosts summed, pull after commit, commits counted": ({"sum_hosts": True}, 2, False),
        "X, pull at once, computed updates counted": ({"sum_hosts": True, "pull": "at-once"}, 2, True),
        "X, ring with one flow": ({"sum_hosts": True}, 1, False),
        "30 workers apart": ({}, 2, False),
    }
    print("## Table 2: speed over the ring, time for 30 updates\n")
    rows: list[tuple[object, ...]] = [
        ("claim", *("/".join(f"{v:.2f}" for v in CLAIMS[n]) for n in NETWORKS), "30 %")
    ]
    for name, (knobs, flows, computed) in readings.items():
        cells, drops = [], []
        for network in NETWORKS:
            ratios = []
            for compute in COMPUTE:
                ring = runs.iteration_s("ring", network, compute, flows=flows)
                of = runs.computed_s if computed else runs.iteration_s
                ratios.append(ring / of("mlfabric-a", network, compute, **knobs))
                drops.append(runs.drop_rate("mlfabric-a", network, compute, **knobs))
            cells.append("/".join(f"{ratio:.2f}" for ratio in ratios))
        rows.append((name, *cells, f"{min(drops) * 100:.0f}-{max(drops) * 100:.0f} %"))
    table(("reading (C1/C2/C3)", *NETWORKS, "dropped"), rows)
    print("Growth of the time for 30 commits from C1 to C2 (X):\n")
    growth: list[tuple[object, ...]] = []
    kinds: tuple[tuple[str, dict[str, object]], ...] = (
        ("ring", {"flows": 2}),
        ("ring, one flow", {"flows": 1}),
        ("mlfabric-a", {"sum_hosts": True}),
    )
    for policy, knobs in kinds:
        name = policy.split(",")[0]
        values = [
            runs.iteration_s(name, n, "C2", **knobs) / runs.iteration_s(name, n, "C1", **knobs) - 1
            for n in NETWORKS
        ]
        growth.append((policy, *(f"{value * 100:+.0f} %" for value in values)))
    table(("", *NETWORKS), growth)
    print("Delay bounds at C1-N1 (X, pull at once; Figure 7):\n")
    at_once = {"sum_hosts": True, "pull": "at-once"}
    bounds: list[tuple[object, ...]] = []
    for bound in (30, 45, 60):
        made = runs.of("mlfabric-a", "N1", "C1", delay_bound=bound, **at_once)
        bounds.append(
            (
                bound,
                mean(run.iteration_s for run in made),
                mean(run.computed_iteration_s for run in made),
                f"{mean(run.drop_rate for run in made) * 100:.0f} %",
                mean(float(run.delays.mean()) for run in made),
            )
        )
    table(("bound", "s for 30 commits", "s for 30 computed", "dropped", "mean delay"), bounds)


def monitor_lag(runs: Runs) -> None:
    """A lag of 2 s instead of 0.2 s, 30 workers apart."""
    print("## Monitor lag, 30 workers apart\n")
    rows = []
    for name, network, claim in (("N2", "N2", "+7.6 %"), ("20 % at 1 Gb/s, 80 % at 10", SKEWED, "+40 %")):
        fresh = runs.iteration_s("mlfabric-a", network, "C1", lag_s=0.2)
        stale = runs.iteration_s("mlfabric-a", network, "C1", lag_s=2.0)
        rows.append((name, fresh, stale, f"{(stale / fresh - 1) * 100:+.1f} %", claim))
    table(("network", "lag 0.2 s", "lag 2 s", "change", "claim"), rows)


def lda(runs: Runs) -> None:
    """Figure 7c and d: seconds an iteration."""
    print("## LDA at C1-N1: seconds for 30 updates (82 MB, 180 ms of compute)\n")
    knobs = {"update_bytes": LDA, "compute_s": 0.18}
    times = {
        "ring": (1.255, runs.iteration_s("ring", "N1", "C1", **knobs)),
        "mlfabric-a 30": (0.739, runs.iteration_s("mlfabric-a", "N1", "C1", **knobs)),
        "mlfabric-a 60": (0.707, runs.iteration_s("mlfabric-a", "N1", "C1", delay_bound=60, **knobs)),
        "async": (3.6, runs.iteration_s("async", "N1", "C1", **knobs)),
    }
    table(("policy", "claim", "here"), ((name, *values) for name, values in times.items()))
    print(f"Async over A-30: {times['async'][1] / times['mlfabric-a 30'][1]:.2f} (claim 4.87).\n")


def synchronous(runs: Runs) -> None:
    """Section 7.2: MLfabric-S against ring and tree."""
    print("## Synchronous: seconds an iteration\n")
    print("Ring and tree with one and with two flows on each link; S with hosts summed.\n")
    rows: list[tuple[object, ...]] = []
    for name, size in (("ResNet-50", RESNET50), ("ResNet-152", RESNET152)):
        for network in NETWORKS:
            for compute in COMPUTE:
                times = {
                    (policy, flows): runs.iteration_s(
                        policy, network, compute, update_bytes=size, flows=flows
                    )
                    for policy in ("ring", "tree")
                    for flows in (1, 2)
                }
                ours = runs.iteration_s("mlfabric-s", network, compute, update_bytes=size, sum_hosts=True)
                faster = ["ring" if times["ring", flows] < ours else "S" for flows in (1, 2)]
                gains = [f"{(1 - ours / times['tree', flows]) * 100:.0f} %" for flows in (1, 2)]
                both = [f"{times[policy, 1]:.2f} / {times[policy, 2]:.2f}" for policy in ("ring", "tree")]
                rows.append(
                    (f"{name} {compute}-{network}", *both, ours, " / ".join(faster), " / ".join(gains))
                )
    table(("", "ring", "tree", "S", "faster of ring and S", "S below tree"), rows)


def messages(runs: Runs) -> None:
    """Figure 8: how many transfers of updates go to slow hosts."""
    print("## Figure 8: transfers of updates to hosts at 2.5 Gb/s or less (N2)\n")
    made = runs.of("mlfabric-s", "N2", "C2")
    share = sum(run.slow_messages for run in made) / sum(run.messages for run in made)
    random_share = NETWORKS["N2"][1] * 27 / 30  # the tree's inner nodes, wherever they are
    table(
        ("", "claim", "here"),
        (
            ("MLfabric", "3 % (816 of 20,000)", f"{share * 100:.1f} %"),
            ("tree, by formula", "1,800 of 20,000", f"{random_share * 100:.1f} %"),
        ),
    )


def replication(runs: Runs) -> None:
    """Figure 9 and section 7.3: what a replica costs."""
    print("## Figure 9: bytes to the replica at C1-N1, workers apart\n")
    without = runs.iteration_s("mlfabric-a", "N1", "C1")
    rows: list[tuple[object, ...]] = []
    slower: dict[int, float] = {}
    for most in (0, 30, 60, 150, 300, 600):
        row: list[object] = [most]
        for patient in (False, True):
            made = runs.of("mlfabric-a", "N1", "C1", replicate_updates=most, replicate_patiently=patient)
            sent = mean(run.replica_bytes for run in made)
            every = mean(run.num_committed * RESNET50 for run in made)
            slower[most] = mean(run.iteration_s for run in made) / without - 1
            row += [every / sent, f"{slower[most] * 100:+.1f} %"]
        rows.append(tuple(row))
    head = ("largest lead, updates", "data reduced by", "iteration", "patiently: reduced by", "iteration")
    table(head, rows)
    long = {"duration_s": 400.0}  # workers begin in lock step
    chain_s = runs.iteration_s("chain", "N1", "C1", **long) - runs.iteration_s("async", "N1", "C1", **long)
    fault_tolerance({most: without * max(slower[most], 0) for most in (30, 600)}, chain_s)


def fault_tolerance(replica_s: dict[int, float], chain_s: float) -> None:
    """Section 7.3: what each way of surviving a failure adds; a checkpoint's seconds fit the first claim.

    Parameters
    ----------
    replica_s
        Simulated seconds that a replica adds to an iteration, for each largest lead of the server.
    chain_s
        Simulated seconds that a second server adds to asynchronous training without sums, in a chain: it
        receives each update from the first.
    """
    added_s = {
        "checkpoint every iteration": (76, CHECKPOINT_S),
        "checkpoint every 20 iterations": (4, CHECKPOINT_S / 20),
        "three hosts write a third each, every iteration": ("7", CHECKPOINT_S / 3),
        "three hosts write a third each, every 20 iterations": ("", CHECKPOINT_S / 3 / 20),
        "the server's checkpoint every 30 updates": (96, CHECKPOINT_S),
        "the server's checkpoint every 600 updates": (6, CHECKPOINT_S / 20),
        "replica, lead 30": (16, replica_s[30]),
        "replica, lead 600": (10, replica_s[600]),
        "chain of two servers, beside one (asynchronous)": ("", chain_s),
    }
    print("## Section 7.3: minutes added to 8,000 iterations\n")
    table(
        ("what", "claim", "here"),
        ((name, claim, ITERATIONS * seconds / 60) for name, (claim, seconds) in added_s.items()),
    )
    print(f"A chain sends {WORKERS} updates an iteration, where one sum would do (claim: up to 30 times).\n")


def planning() -> None:
    """Section 7.4: how long a plan takes."""
    print("## Section 7.4: planning (order and aggregation), milliseconds\n")
    rows = []
    taken = []
    for n, claim in ((10, 5), (100, 30), (500, 440), (1000, 1460)):
        times = []
        for seed in range(5):
            random = np.random.default_rng(seed)
            hosts = n // 2
            up = random.choice(RATES[1:], hosts)
            network = Capacities.constant([*up, 1.25e9], [*random.choice(RATES[1:], hosts), 1.25e9])
            updates = Updates(
                size=np.full(n, float(RESNET50)),
                host=np.arange(n) % hosts,
                server=hosts,
                deadline=random.integers(1, 2 * n + 1, n),
            )
            order_updates(updates, network)
            began = time.perf_counter()
            ordering = order_updates(updates, network)
            aggregate(updates, ordering.commits, network, range(min(hosts, 15)))
            times.append(time.perf_counter() - began)
        taken.append(float(np.median(times)))
        rows.append((n, claim, taken[-1] * 1e3))
    table(("updates", "claim", "here"), rows)
    slope = np.polyfit(np.log([100, 500, 1000]), np.log(taken[1:]), 1)[0]
    print(f"Growth exponent from 100 to 1,000 updates: {slope:.2f}.\n")


def order_search() -> None:
    """Section 6: how far lists are from the exact program."""
    print("## Order search: sum of commit times over the optimum, 40 batches of 2 to 4 updates\n")
    random = np.random.default_rng(11)
    over: dict[str, list[float]] = {"greedy": [], "search": []}
    for _ in range(40):
        n = int(random.integers(2, 5))
        updates = Updates(size=random.integers(50, 400, n).astype(float), host=np.arange(n), server=n)
        network = Capacities.constant([*random.choice([10, 25, 50, 100], n), 100], [100] * (n + 1))
        exact = solve_exactly(updates, network).total_s
        over["greedy"].append(float(order_updates(updates, network).commit_s.sum()) / exact - 1)
        over["search"].append(float(search_order(updates, network).commit_s.sum()) / exact - 1)
    rows = [(name, f"{mean(each) * 100:.2f} %", f"{max(each) * 100:.2f} %") for name, each in over.items()]
    table(("order", "mean", "worst"), rows)


def joint(num_batches: int = 20) -> None:
    """Section 10.1: order and then aggregation, beside one program for both."""
    print(f"## Joint program: last commit over the optimum, {num_batches} batches of 3 to 5 updates\n")
    random = np.random.default_rng(4)
    directly: list[float] = []
    after: list[float] = []
    for _ in range(num_batches):
        n = int(random.integers(3, 6))
        updates = Updates(size=np.ones(n), host=np.arange(n), server=n)
        network = Capacities.constant([*random.choice([0.5, 1.0], n), 1, 1, 1], [1.0] * (n + 3))
        order = order_updates(updates, network).commits
        best = solve_jointly(updates, network, (n + 1, n + 2), 1.0).last_s
        for found, relays in ((directly, []), (after, [n + 1, n + 2])):
            plan = aggregate(updates, order, network, relays)
            assert plan is not None
            found.append(plan.last_s / best - 1)
    rows = [
        (name, f"{mean(each) * 100:.1f} %", f"{max(each) * 100:.0f} %", sum(over < 1e-9 for over in each))
        for name, each in (("order alone", directly), ("order, then aggregation", after))
    ]
    table(("plan", "mean", "worst", "optimal"), rows)


def ring_growth(num_runs: int = 40) -> None:
    """How the ring's growth from C1 to C2 at N1 depends on the ring, the hosts, and the length of a run."""
    print("## Growth of the ring's iteration from C1 to C2 at N1\n")
    rows: list[tuple[object, ...]] = []
    for machines in (15, 8):
        for flows in (2, 1):
            cells: list[object] = [f"{machines} hosts, {flows} flow{'s' * (flows > 1)}"]
            cells.append(f"{_expected_growth(machines, flows) * 100:+.0f} %")
            for seconds, seeds in ((400.0, 8), (15.0, num_runs)):
                knobs = {"machines": machines, "flows": flows}
                runs = Runs(seconds, seeds)
                times = [runs.of("ring", "N1", compute, **knobs) for compute in ("C1", "C2")]
                grown = [b.iteration_s / a.iteration_s - 1 for a, b in zip(*times, strict=True)]
                cells.append(
                    f"{mean(grown) * 100:+.0f} % ({min(grown) * 100:+.0f} to {max(grown) * 100:+.0f})"
                )
            rows.append(tuple(cells))
    table(("ring of two workers on each", "by hand", "8 runs of 400 s", f"{num_runs} of 15 s"), rows)


def _expected_growth(machines: int, flows: int) -> float:
    """Return the growth if every iteration met fresh draws of 10 % stragglers and 10 % links at half rate."""
    workers = 2 * machines
    members = machines if flows == 1 else workers
    straggling, slow = 1 - 0.9**workers, 1 - 0.9 ** (2 * machines)
    ring = 2 * (members - 1) / members * flows * RESNET50 / RATES[-1] * (1 + slow)
    first, second = (0.1 * (1 + (slowdown - 1) * straggling) + ring for slowdown in (2, 4))
    return second / first - 1


def main() -> None:
    """Print every table, or those that are asked for."""
    parser = study_parser(__doc__)
    parser.add_number("--seconds", 40.0, "duration of a simulated run in seconds")
    parser.add_number("--seeds", 2, "number of runs of a row")
    parser.add_argument(
        "--only", help="some of replication,planning,order-search,joint,ring-growth (default: all)"
    )
    given = parser.parse_args()
    measured = {
        "replication": lambda: replication(Runs(given.seconds, given.seeds)),
        "planning": planning,
        "order-search": order_search,
        "joint": joint,
        "ring-growth": ring_growth,
    }
    if given.only:
        for name in given.only.split(","):
            measured[name]()
        return
    runs = Runs(given.seconds, given.seeds)
    formulas()
    stragglers(runs)
    table_2(runs)
    monitor_lag(runs)
    ring_growth()
    lda(runs)
    synchronous(runs)
    messages(runs)
    replication(runs)
    planning()
    order_search()
    joint()
