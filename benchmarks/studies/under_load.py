"""Plans under load on 96 networks, beside DDP: late ranks, and calls that take longer while compute runs.

    python -m benchmarks under_load [--json OUT] [--quick]

Four models at 30 TFLOP/s, 8 and 64 workers, latencies of 5 to 300 us and rings of 10 to 400 Gbit/s. Windows
are replayed op by op by code that the planner does not share. Regret is the mean window over that of the best
plan for the same network, less one. PACE gets the profile alone; the others are the plan with the shortest
window without load, and plans as if every call took 0.3, 1.25 or 3 ms longer. Gradients are summed by
all-reduces; and where updates wait for a global norm, by reduce-scatters and all-gathers.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conditions import study_parser, write_json
from pace import Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce, AffineHalf
from pace.documents.load import NO_LOAD
from pace.documents.profile import UpdateRule
from pace.documents.schedule import Schedule
from pace.models import build
from pace.planning.frameworks.grouping_rules import ddp_buckets
from pace.planning.fusion.problem import FusionProblem

MODELS = {"vgg16": 32, "resnet50": 32, "transformer": 2048, "bert-large": 1024}
WORKERS = (8, 64)
LATENCIES_S = (5e-6, 5e-5, 3e-4)
GBITS_PER_S = (10, 40, 100, 400)
SLOWER_CALLS_S = (0.3e-3, 1.25e-3, 3e-3)
EXTRA_S = (1.0e-3, 1.5e-3)
UPDATES: tuple[UpdateRule, ...] = ("per-gradient", "global-norm")
NORM_BYTES = 8


class Call(NamedTuple):
    """A call: the numbers of the gradients that it waits for and delivers, and its seconds."""

    waits_for: list[int]
    delivers: list[int]
    duration_s: float


class LateRanks:
    """Random windows of a profile of one stream: every rank has durations of its own.

    Parameters
    ----------
    kind
        "op": each op's duration varies by itself; "rank": all ops of a rank vary together.
    extra_s
        Least and most seconds by which a call takes longer if it starts while a rank computes.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        kind: str,
        extra_s: tuple[float, float],
        jitter: float = 0.05,
        count: int = 16,
    ) -> None:
        random = np.random.default_rng(5)
        place = {op.name: number for number, op in enumerate(profile.ops)}
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        durations = np.array([op.duration_s for op in profile.ops])
        shape = (count, profile.workers, len(durations) if kind == "op" else 1)
        sigma = np.sqrt(np.log1p(jitter**2))
        drawn = durations * np.exp(sigma * random.standard_normal(shape) - sigma**2 / 2)
        end = np.cumsum(drawn, axis=2)
        waiting = [number for number, op in enumerate(profile.ops) if op.waits_for]
        self._needs = [[index[name] for name in profile.ops[op].waits_for] for op in waiting]
        self._parts = [
            drawn[:, :, first:last].sum(axis=2)
            for first, last in zip(waiting, [*waiting[1:], len(durations)], strict=True)
        ]
        self._backward = end[:, :, waiting[0] - 1]
        producers = [place[gradient.producer] for gradient in profile.gradients]
        self._ready = end.max(axis=1)[:, producers]
        self._extra = random.uniform(*extra_s, (count, 1000))

    def of_schedule(self, schedule: Schedule, profile: Profile) -> float:
        """Return the mean window of a schedule's transfers at this profile's costs, in seconds."""
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        first, second = profile.half_costs
        cost = {None: profile.cost, "reduce-scatter": first, "all-gather": second}
        left = Counter(transfer.group for transfer in schedule.transfers)
        scatters = sum(transfer.op == "reduce-scatter" for transfer in schedule.transfers)
        calls = []
        for number, transfer in enumerate(schedule.transfers, 1):
            group = schedule.groups[transfer.group]
            members = [index[name] for name in group.tensors]
            left[transfer.group] -= 1
            waits_for = [] if group.op == "all-gather" else members
            delivers = [] if left[transfer.group] or group.op == "reduce-scatter" else members
            calls.append(Call(waits_for, delivers, float(cost[group.op](transfer.size_bytes))))
            if number == scatters and profile.update == "global-norm":
                calls.append(Call([], [], float(profile.cost(NORM_BYTES))))
        return self.mean_s(calls)

    def ddp_s(self, profile: Profile) -> float:
        """Return the mean window of DDP's default buckets with their barrier, in seconds."""
        problem = FusionProblem.of(profile)
        buckets = [list(bucket) for bucket in ddp_buckets(problem)]
        costs = [float(profile.cost(problem.sizes[bucket].sum())) for bucket in buckets]
        calls = [Call(*each) for each in zip(buckets, buckets, costs, strict=True)]
        return self.mean_s(calls, barrier=True)

    def mean_s(self, calls: Sequence[Call], *, barrier: bool = False) -> float:
        """Return the mean window in seconds of these calls, in this order."""
        arrival = np.full_like(self._ready, np.inf)
        reached, place = self._backward.copy(), 0
        now = np.zeros(len(self._ready))
        for call, (waits_for, delivers, duration) in enumerate(calls):
            start = np.maximum(now, self._ready[:, waits_for].max(axis=1, initial=0.0))
            while (
                not barrier and place < len(self._needs) and np.isfinite(arrival[:, self._needs[place]]).all()
            ):
                arrived = arrival[:, self._needs[place]].max(axis=1)
                reached = np.maximum(reached, arrived[:, None]) + self._parts[place]
                place += 1
            computing = reached.max(axis=1) > start + 1e-12
            now = start + duration + np.where(computing, self._extra[:, call], 0.0)
            arrival[:, delivers] = now[:, None]
        if barrier:
            arrival[:] = now[:, None]
        for part, needs in zip(self._parts[place:], self._needs[place:], strict=True):
            reached = np.maximum(reached, arrival[:, needs].max(axis=1)[:, None]) + part
        return float(np.maximum(reached.max(axis=1), now).mean())


def on_network(model: str, *, workers: int, latency_s: float, gbit_per_s: float) -> Profile:
    """Return a bundled model on a ring, at 30 TFLOP/s."""
    per_byte = 2 * (workers - 1) / workers / (gbit_per_s * 1e9 / 8)
    cost = AffineAllReduce(latency_s=latency_s, seconds_per_byte=per_byte)
    return build(model, device_tflops=30, batch=MODELS[model], workers=workers, allreduce=cost)


def settings(quick: bool) -> Iterator[tuple[str, int, float, float]]:
    """Yield model, workers, latency in seconds and Gbit/s."""
    for model in MODELS:
        for workers in WORKERS:
            for latency_s in LATENCIES_S[:: 2 if quick else 1]:
                for gbit_per_s in GBITS_PER_S[:: 3 if quick else 1]:
                    yield model, workers, latency_s, gbit_per_s


def with_slower_calls(profile: Profile, extra_s: float) -> Profile:
    """Return the profile as if every call took `extra_s` longer."""
    cost = profile.allreduce
    assert isinstance(cost, AffineAllReduce)
    slower = cost.model_copy(update={"latency_s": cost.latency_s + extra_s})
    half = AffineHalf(latency_s=cost.latency_s / 2 + extra_s, seconds_per_byte=cost.seconds_per_byte / 2)
    return profile.replace(allreduce=slower, reduce_scatter=half, all_gather=half, load=NO_LOAD)


def windows_s(profile: Profile, kind: str) -> tuple[dict[str, float], int, float]:
    """Return mean windows by plan, the number of calls of PACE's plan, and the seconds of its search."""
    judge = LateRanks(profile, kind=kind, extra_s=EXTRA_S)
    found = {"DDP, 25 MiB": judge.ddp_s(profile)}
    start = time.perf_counter()
    schedule = optimize(profile, Options())
    planning_s = time.perf_counter() - start
    found["PACE"] = judge.of_schedule(schedule, profile)
    found["shortest without load"] = judge.of_schedule(optimize(profile.replace(load=NO_LOAD)), profile)
    for extra_s in SLOWER_CALLS_S:
        planned = optimize(with_slower_calls(profile, extra_s))
        found[f"latency + {extra_s * 1e3:g} ms"] = judge.of_schedule(planned, profile)
    return found, len(schedule.transfers), planning_s


def main() -> None:
    """Print tables for durations of ops that vary one by one, and for ranks that vary as a whole."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument("--quick", action="store_true", help="16 of the networks of each kind")
    given = parser.parse_args()
    console = Console()
    results: dict[str, Any] = {}
    for kind, update in product(("op", "rank"), UPDATES):
        rows = []
        for model, workers, latency_s, gbit_per_s in settings(given.quick):
            profile = on_network(model, workers=workers, latency_s=latency_s, gbit_per_s=gbit_per_s)
            found, calls, planning_s = windows_s(profile.replace(update=update), kind)
            rows.append(
                {
                    "model": model,
                    "workers": workers,
                    "latency_s": latency_s,
                    "gbit_per_s": gbit_per_s,
                    "windows_s": found,
                    "calls": calls,
                    "planning_s": planning_s,
                }
            )
        results[f"{kind}, {update}"] = rows
        _report(kind, update, rows, console)
    write_json(given.json, results)


def _report(kind: str, update: str, rows: list[dict[str, Any]], console: Console) -> None:
    title = f"Each {kind} varies by 5 %, {update} updates, {len(rows)} networks"
    table = Table(title=title, box=None, title_justify="left")
    table.add_column("plan")
    for heading in ("mean regret %", "worst %", "slower than DDP", "x DDP"):
        table.add_column(heading, justify="right")
    for plan in rows[0]["windows_s"]:
        windows = np.array([row["windows_s"][plan] for row in rows])
        best = np.array([min(row["windows_s"].values()) for row in rows])
        ddp = np.array([row["windows_s"]["DDP, 25 MiB"] for row in rows])
        regret = 100 * (windows / best - 1)
        slower = int(np.sum(windows > ddp * 1.0001))
        table.add_row(
            plan, f"{regret.mean():.2f}", f"{regret.max():.1f}", str(slower), f"{(ddp / windows).mean():.3f}"
        )
    console.print(table)
    calls = np.mean([row["calls"] for row in rows])
    console.print(f"PACE: {calls:.1f} calls on average\n")
