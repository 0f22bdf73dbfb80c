"""ByteScheduler (SOSP 2019) on parameter servers: Figs. 2, 4 and 13, Table 1, P3; prints Markdown.

    python -m benchmarks papers.bytescheduler_servers [--layers vgg16=graph.txt]

Machines of eight GPUs add their gradients locally, so a worker here is a machine; W = S = 4. Compute is
scaled to what a machine with V100s takes for a window: an assumption, as the figures' absolute times are
not published.
"""

from functools import cache
from typing import Any

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.bytescheduler import three_layers
from benchmarks.studies.papers.profiles import add_layers, profile_of
from pace import Profile
from pace.documents.cluster import Cluster
from pace.documents.options import Options, SimulationOptions
from pace.documents.push_pull import PushPull
from pace.kinds.tuning import tune
from pace.simulation import make_policy
from pace_servers.planning.optimize import optimize_servers
from pace_servers.planning.problem import ServersProblem
from pace_servers.simulation.run import run_server_policy

# VGG19 and AlexNet at VGG16's rate of operations.
COMPUTE_S = {"vgg16": 0.140, "resnet50": 0.095, "transformer": 0.120, "vgg19": 0.178, "alexnet": 0.0065}
BATCHES = {"vgg16": 32, "resnet50": 32, "transformer": 512, "vgg19": 32, "alexnet": 32}
# Those of Table 1 and Fig. 13.
MODELS = ("vgg16", "resnet50", "transformer")
GBPS = (1, 10, 25, 40, 100)
MACHINES = 4
THETA_S, ROUND_TRIP_S = 50e-6, 100e-6
# Table 1's push-pull column over RDMA: best partition and credit in MB; 47 us explain the partitions.
PUBLISHED_MB = {"vgg16": (6, 21), "resnet50": (3, 17), "transformer": (5, 29)}
RDMA_THETA_S = 47e-6
PARTITIONS_MB = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 12, 16, 24)
CREDIT_IN_PARTITIONS = (1, 2, 4, 6, 8)


LAYERS: dict[str, str] = {}


@cache
def trained(model: str) -> Profile:
    """Return a machine's window, computed or from a measured table of layers, scaled to its compute time."""
    profile = profile_of(model, batch=BATCHES[model], workers=MACHINES, layers=LAYERS)
    factor = COMPUTE_S[model] / profile.timing.compute_s
    ops = tuple(op.model_copy(update={"duration_s": op.duration_s * factor}) for op in profile.ops)
    return profile.replace(ops=ops)


def servers(gbps: float, *, theta_s: float = THETA_S) -> Cluster:
    """Return four servers on hosts of their own."""
    exchange = PushPull(
        servers=MACHINES,
        worker_bytes_per_s=gbps * 1e9 / 8,
        partition_s=theta_s,
        round_trip_s=ROUND_TRIP_S,
    )
    return Cluster(name=f"{gbps:g} Gb/s", exchange=exchange)


def window(profile: Profile, cluster: Cluster, policy: str, **knobs: Any) -> float:
    """Return the window of a policy in seconds."""
    return run_server_policy(profile, cluster, make_policy(policy, "servers", **knobs)).iteration_s


def example() -> list[tuple[str, list[float]]]:
    """Return both three-layer cases under whole tensors and parts, first in first out and by layer."""
    alone = Cluster(name="one", exchange=PushPull(servers=1, worker_bytes_per_s=1.0))
    rows = []
    for sizes, forward_s in (((1, 2, 3), 1.0), ((1, 4, 8), 4.0)):
        profile = three_layers(sizes, 1.0, forward_s).replace(workers=1)
        wait: dict[str, Any] = {"credit_bytes": 0, "admission": "paper"}
        times = [
            window(profile, alone, "fifo"),
            window(profile, alone, "bytescheduler", partition_bytes=1000, **wait),
            window(profile, alone, "fifo", keys="parts", partition_bytes=1),
            window(profile, alone, "bytescheduler", partition_bytes=1, **wait),
            optimize_servers(profile, Options(cluster=alone)).predicted.lower_bound_s,
        ]
        rows.append((f"{sizes}; forward {forward_s:g}", times))
    return rows


def tuned(profile: Profile, cluster: Cluster) -> dict[str, int | float]:
    """Return ByteScheduler's knobs after ten trials of Bayesian optimization."""
    found = tune(
        profile,
        "bytescheduler",
        SimulationOptions(cluster=cluster, knobs={"credit_of": "connection"}),
        num_trials=10,
    )
    return found.best.knobs


def speeds() -> None:
    """Print Fig. 13: gains over MXNet's FIFO from 1 to 100 Gb/s, and at 10 Gb/s over P3."""
    print("| model | Gb/s | bound ms | FIFO | P3 | ByteScheduler | gain | fixed knobs | over P3 | ours |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in MODELS:
        profile = trained(model)
        fixed = tuned(profile, servers(GBPS[0]))
        for gbps in GBPS:
            cluster = servers(gbps)
            bound = optimize_servers(profile, Options(cluster=cluster)).predicted.lower_bound_s
            fifo, p3, ours = (window(profile, cluster, name) for name in ("fifo", "p3", "pace"))
            best = window(
                profile, cluster, "bytescheduler", credit_of="connection", **tuned(profile, cluster)
            )
            kept = window(profile, cluster, "bytescheduler", credit_of="connection", **fixed)
            print(
                f"| {model} | {gbps} | {bound * 1e3:.1f} | {fifo * 1e3:.1f} | {p3 * 1e3:.1f} "
                f"| {best * 1e3:.1f} | {(fifo / best - 1) * 100:.0f} % | {(fifo / kept - 1) * 100:.0f} % "
                f"| {(p3 / best - 1) * 100:.0f} % | {ours * 1e3:.1f} |"
            )


def best_sizes() -> None:
    """Print Table 1: the best partition and credit on a grid, beside the published ones and delta0."""
    print("| model | delta0 MB | at 100 Gb/s | best part MB | credit MB | within 1 % MB | published |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in MODELS:
        profile, cluster = trained(model), servers(25, theta_s=RDMA_THETA_S)
        at_100 = ServersProblem.of(profile, servers(100, theta_s=RDMA_THETA_S))
        tried = [
            (
                window(
                    profile,
                    cluster,
                    "bytescheduler",
                    credit_of="connection",
                    partition_bytes=int(size * 1e6),
                    credit_bytes=int(size * parts * 1e6),
                ),
                size,
                size * parts,
            )
            for size in PARTITIONS_MB
            for parts in CREDIT_IN_PARTITIONS
        ]
        least, size, credit = min(tried)
        flat = [each for time, each, _ in tried if time <= 1.01 * least]
        delta0 = ServersProblem.of(profile, cluster).suggested_partition_bytes() / 1e6
        fastest = at_100.suggested_partition_bytes() / 1e6
        print(
            f"| {model} | {delta0:.1f} | {fastest:.1f} | {size:g} | {credit:g} | {min(flat):g}-{max(flat):g} "
            f"| {PUBLISHED_MB[model]} |"
        )


def sizes_alone() -> None:
    """Print Fig. 4: speed by partition with a credit of four of them, and by credit at the best."""
    factors = (0.25, 0.5, 1, 2, 4, 8, 16)
    print(f"| model | knob | {' | '.join(f'{factor:g}' for factor in factors)} |")
    print(f"| --- | --- | {' | '.join('---:' for _ in factors)} |")
    for model in MODELS:
        profile, cluster = trained(model), servers(10)

        def speed(
            part_mb: float, credit_mb: float, at: tuple[Profile, Cluster] = (profile, cluster)
        ) -> float:
            knobs: dict[str, Any] = {
                "partition_bytes": int(part_mb * 1e6),
                "credit_bytes": int(credit_mb * 1e6),
                "credit_of": "worker",
            }
            return 1 / window(*at, "bytescheduler", **knobs)

        by_part = [speed(factor, 4 * factor) for factor in factors]
        part = factors[by_part.index(max(by_part))]
        by_credit = [speed(part, part * factor) for factor in factors]
        most = max(by_part + by_credit)
        for knob, speeds_found in (("partition, MB", by_part), (f"credit, parts of {part:g} MB", by_credit)):
            print(f"| {model} | {knob} | {' | '.join(f'{each / most:.2f}' for each in speeds_found)} |")


def orders() -> None:
    """Print what each order takes above the bound when workers jitter, with parts of 1 MB at 10 Gb/s."""
    names = ("by-layer", "static", "overtake")
    print(f"| model | workers | jitter | {' | '.join(names)} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model in ("vgg16", "resnet50"):
        for workers in (4, 8):
            profile = trained(model).replace(workers=workers)
            exchange = servers(10).exchange.model_copy(update={"servers": workers})
            cluster = Cluster(name="10 Gb/s", exchange=exchange)
            bound = optimize_servers(profile, Options(cluster=cluster)).predicted.lower_bound_s
            for jitter in (0.05, 0.2):
                over = [
                    run_server_policy(
                        profile,
                        cluster,
                        make_policy("pace", "servers", order=order, partition_bytes=1_000_000),
                        jitter=jitter,
                        iterations=10,
                        seed=1,
                    ).iteration_s
                    / bound
                    - 1
                    for order in names
                ]
                shown = " | ".join(f"{each * 100:.1f} %" for each in over)
                print(f"| {model} | {workers} | {jitter:.0%} | {shown} |")


def main() -> None:
    """Print all tables."""
    parser = study_parser(__doc__)
    add_layers(parser)
    given = parser.parse_args()
    LAYERS.update(given.layers)
    print("\n| three layers | FIFO whole | priority whole | FIFO parts | priority parts | gain | bound |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, times in example():
        shown = " | ".join(f"{time:g}" for time in times[:-1])
        print(f"| {name} | {shown} | {(times[0] / times[3] - 1) * 100:.1f} % | {times[-1]:g} |")
    print()
    speeds()
    print()
    best_sizes()
    print()
    sizes_alone()
    print()
    orders()
