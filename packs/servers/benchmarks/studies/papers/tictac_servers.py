"""TicTac (MLSys 2019) on one server and up to four workers: throughput, E and S; prints Markdown.

    python -m benchmarks papers.tictac_servers [--windows 200] [--layers vgg16=graph.txt]

One server's link carries what all workers pull. Its rate is chosen so that communication of four workers
takes 0.95 of a worker's compute (the paper sets its batches so that S > 0.9). For inference, pulls take that
time. For training, pulls and pushes together do, and in a second run pulls alone. The durations of every
worker's ops vary by 2 % between iterations. Without TicTac, every worker pulls in a random order of its own,
drawn again for every iteration, as TensorFlow does.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.harness.conditions import study_parser
from benchmarks.studies.papers.profiles import add_layers, profile_of
from pace import Gradient, Op, Profile
from pace.documents.cluster import Cluster, TransferRatio
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.push_pull import PushPull
from pace.simulation.tictac import fastest, makespan_limits, ordering_efficiency, ordering_speedup
from pace_servers.simulation.policies import TicTacOnServers
from pace_servers.simulation.run import ServersSimulation, run_server_policy
from pace_servers.simulation.traffic import ServersTraffic

MODELS = {"alexnet": 512, "vgg16": 32, "inception-v3": 32, "resnet50": 32}
ORDERS = ("random", "tio", "tao")
# What is simulated, and which part of a worker's compute the pulls of four workers take.
KINDS = {"inference": 0.95, "training": 0.475, "training, pulls 0.95": 0.95}
NOISE = 0.02
MOST_WORKERS = 4
LAYERS: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A profile and its one server."""

    profile: Profile
    cluster: Cluster


def window_of(model: str) -> Profile:
    """Return a model's window, computed or from a measured table of layers."""
    return profile_of(model, batch=MODELS[model], workers=MOST_WORKERS, layers=LAYERS)


def setting(profile: Profile, workers: int, pulls_of_compute: float, *, training: bool) -> Setting:
    """Return `workers` workers and a server whose link takes that part of compute for the pulls of four.

    For inference the backward pass takes no time and pushes carry nothing.
    """
    ops = profile.ops
    ratios: tuple[TransferRatio, ...] = ()
    if not training:
        ops = tuple(
            op.model_copy(update={"duration_s": 0.0}) if op.name.startswith("bwd/") else op for op in ops
        )
        ratios = tuple(TransferRatio(gradient=gradient.name, push=1e-9) for gradient in profile.gradients)
    profile = profile.replace(ops=ops, workers=workers)
    total = sum(gradient.size_bytes for gradient in profile.gradients)
    rate = total * MOST_WORKERS / (pulls_of_compute * profile.timing.compute_s)
    exchange = PushPull(servers=1, worker_bytes_per_s=rate)
    return Setting(profile=profile, cluster=Cluster(name="one server", exchange=exchange, ratios=ratios))


def steps(
    made: Setting, order: str, windows: int, *, barrier: bool = True, known: Profile | None = None
) -> ServersSimulation:
    """Return simulated windows under an order, by what is `known` of durations: the truth if left out."""
    policy = TicTacOnServers(order=order, barrier=barrier)  # type: ignore[arg-type]  # one of ORDERS
    ranked = KnownFrom(policy=policy, known=known or made.profile)
    return run_server_policy(made.profile, made.cluster, ranked, iterations=windows, jitter=NOISE)


def busy_s(made: Setting) -> list[float]:
    """Return how long compute, pulls and pushes take alone."""
    exchange = made.cluster.exchange
    total = sum(gradient.size_bytes for gradient in made.profile.gradients)
    pulls = total * made.profile.workers / exchange.worker_bytes_per_s
    pushes = 0.0 if made.cluster.ratios else pulls
    return [made.profile.timing.compute_s, pulls, pushes]


def efficiency(made: Setting, windows_s: np.ndarray) -> np.ndarray:
    """Return ordering efficiency E of every window: 1 is the busiest resource alone, 0 one after another."""
    return np.array([ordering_efficiency(busy_s(made), float(time)) for time in windows_s])


def print_gains(windows: int) -> None:
    """Print gains over no order from one to four workers, inference and training."""
    print("| model | what | workers | no order ms | TIO | TAO | waits: none | TIO | TAO | E: none | TAO |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in MODELS:
        profile = window_of(model)
        for what, share in KINDS.items():
            for workers in (1, 2, MOST_WORKERS):
                made = setting(profile, workers, share, training=what != "inference")
                runs = {order: steps(made, order, windows) for order in ORDERS}
                time = {order: run.iteration_s for order, run in runs.items()}
                gains = [f"{(time['random'] / time[order] - 1) * 100:.0f} %" for order in ("tio", "tao")]
                waits = [f"{runs[order].straggler_share * 100:.1f} %" for order in ORDERS]
                means = [
                    f"{efficiency(made, runs[order].iterations_s).mean():.2f}" for order in ("random", "tao")
                ]
                cells = [*gains, *waits, *means]
                print(f"| {model} | {what} | {workers} | {time['random'] * 1e3:.1f} | {' | '.join(cells)} |")


def print_spread(windows: int) -> None:
    """Print E against window time, how steady windows are, and S with the theoretical worst and best."""
    print(
        "| model | S | worst ms | random ms | TIO | TAO | best ms | E: random | TAO | R2 of E and time "
        "| normalized time, 95th percentile: random | TIO | TAO |"
    )
    print("| --- |" + " ---: |" * 12)
    for profile in map(window_of, MODELS):
        made = setting(profile, MOST_WORKERS, KINDS["inference"], training=False)
        times = {order: steps(made, order, windows).iterations_s for order in ORDERS}
        worst, best = makespan_limits(busy_s(made))
        both = np.concatenate([times["random"], times["tao"]])
        points = np.corrcoef(efficiency(made, both), both)[0, 1] ** 2
        fastest_window = min(float(each.min()) for each in times.values())
        cells = [f"{ordering_speedup(busy_s(made)):.2f}", f"{worst * 1e3:.1f}"]
        cells += [f"{times[order].mean() * 1e3:.1f}" for order in ORDERS]
        cells += [f"{best * 1e3:.1f}"]
        cells += [f"{efficiency(made, times[order]).mean():.2f}" for order in ("random", "tao")]
        cells += [f"{points:.3f}"]
        cells += [f"{fastest_window / np.percentile(times[order], 95):.3f}" for order in ORDERS]
        print(f"| {profile.name} | {' | '.join(cells)} |", flush=True)


def print_barrier(windows: int) -> None:
    """Print what an order is worth with the barrier of TensorFlow, and what it is worth without."""
    print("| model | pulls of compute | workers | barrier | random ms | TIO | TAO |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: |")
    shares = [share for kind, share in KINDS.items() if kind != "inference"]
    for model in MODELS:
        profile = window_of(model)
        for share, workers in product(shares, (1, MOST_WORKERS)):
            made = setting(profile, workers, share, training=True)
            for barrier in (True, False):
                time = {
                    order: steps(made, order, windows, barrier=barrier).iteration_s * 1e3 for order in ORDERS
                }
                gains = [
                    f"{time[order]:.1f} ({(time['random'] / time[order] - 1) * 100:+.0f} %)"
                    for order in ORDERS[1:]
                ]
                shown = f"{time['random']:.1f} | {' | '.join(gains)}"
                print(
                    f"| {model} | {share:g} | {workers} | {'yes' if barrier else 'no'} | {shown} |",
                    flush=True,
                )


def print_oracle(windows: int, runs: int = 5) -> None:
    """Print TAO from durations of one run, of the mean and of the minimum of several (its time oracle)."""
    print("| profile | noise of a run | no order ms | TAO by one run | mean | minimum | truth |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for profile in (window_of("inception-v3"), branches(32)):
        made = setting(profile, MOST_WORKERS, KINDS["inference"], training=False)
        for noise in (0.2, 1.0):
            measured = [noisy(made.profile, noise, seed) for seed in range(runs)]
            mean = made.profile.replace(
                ops=tuple(
                    op.model_copy(
                        update={"duration_s": sum(each.ops[at].duration_s for each in measured) / runs}
                    )
                    for at, op in enumerate(made.profile.ops)
                )
            )
            known = [measured[0], mean, fastest(measured), made.profile]
            times = [steps(made, "random", windows).iteration_s] + [
                steps(made, "tao", windows, known=each).iteration_s for each in known
            ]
            shown = " | ".join(f"{time * 1e3:.2f}" for time in times)
            print(f"| {profile.name} | {noise:.0%} | {shown} |", flush=True)


def branches(count: int) -> Profile:
    """Return forward ops of unequal length, each with a transfer of its own: long ones should not wait."""
    lengths = np.random.default_rng(0).lognormal(0, 1, count)
    return Profile(
        name=f"par-{count}, unequal",
        workers=1,
        ops=(
            Op(name="bwd/all", duration_s=1.0),
            *(
                Op(name=f"fwd/{at}", duration_s=float(length), deps=("bwd/all",), waits_for=(f"g{at}",))
                for at, length in enumerate(lengths)
            ),
        ),
        gradients=tuple(
            Gradient(name=f"g{at}", size_bytes=1_000_000, producer="bwd/all") for at in range(count)
        ),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1e-9),
    )


def noisy(profile: Profile, noise: float, seed: int) -> Profile:
    """Return what one run measures: a duration is never below the true one, and exponentially above it."""
    random = np.random.default_rng([seed, 3])
    return profile.replace(
        ops=tuple(
            op.model_copy(update={"duration_s": op.duration_s * (1 + noise * random.exponential())})
            for op in profile.ops
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFrom:
    """A policy that takes its order from another profile than the one that runs."""

    policy: TicTacOnServers
    known: Profile

    def traffic(self, _profile: Profile, cluster: Cluster) -> ServersTraffic:
        """Return the traffic for what is known."""
        return self.policy.traffic(self.known, cluster)


def main() -> None:
    """Print all tables."""
    parser = study_parser(__doc__)
    parser.add_number("--windows", 200, "number of simulated iterations")
    add_layers(parser)
    given = parser.parse_args()
    windows = given.windows
    LAYERS.update(given.layers)
    print_gains(windows)
    print()
    print_spread(windows)
    print()
    print_barrier(windows)
    print()
    print_oracle(windows)
