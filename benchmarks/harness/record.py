"""A record: every setting of a grid, measured one after another on hosts made for it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.capture import capture_cost, capture_halves
from benchmarks.harness.conditions import machine
from benchmarks.harness.contenders import (
    ALLREDUCE,
    BY_NAME,
    CLIPPING,
    CORE,
    DDP_SWEEP_MIB,
    FRAMEWORK_PAIRS,
    FRAMEWORKS,
    HSDP,
    OVER_SERVERS,
    RINGS,
    TICTAC,
    UNCLIPPED,
    Contender,
)
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout, parse_layout
from benchmarks.harness.measure import Effort, Tell, measure
from benchmarks.harness.network.hosts import Host, Link, congestion_control, hosts, join_directly
from benchmarks.harness.network.rates import measure_rates, verify_rates
from benchmarks.harness.results import SettingResult, as_document
from benchmarks.harness.training.inner_times import measure_inner_times
from benchmarks.harness.workload.real import MODELS as REAL_MODELS
from benchmarks.harness.workload.real import captured
from benchmarks.harness.workload.scaling import Fitted, fit
from pace.documents.collective_costs import AllReduce
from pace.models import build, communication_ratio

# Images or tokens of one device in an iteration; times are scaled, so only the balance of layers follows.
MODELS = {"vgg16": 64, "resnet50": 32, "transformer": 2048, "inception-v3": 32}
DEVICE_TFLOPS = 5.6

# Units of shards are small, and the links between replicas slow.
_LARGEST_OF_SHARDS = 1 << 20
_PACKET_BETWEEN_REPLICAS = 4096

EVERY_CONTENDER_AT = (Layout(4), 1.0)


def _layouts(*texts: str) -> tuple[Layout, ...]:
    return tuple(map(parse_layout, texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings that a record covers.

    Attributes
    ----------
    models
        Names of computed profiles; or of models with real compute, for two workers.
    contenders
        Their names; without any, all that compete in a setting.
    clip
        Whether gradients are clipped by their global norm.
    pacing
        Whether connections to servers are paced; each value is a setting.
    rate_mbit_s
        Rate of every host's link, both ways, in Mbit/s; with shards, of the one between replicas.
    inner_mbit_s
        Rate of every host's link within its replica; None: not shaped.
    compute_s
        Length of the emulated window without communication.
    rounds, windows
        Turns of each contender, and windows of each turn; with all-reduces, where all contenders compete or
        compute is real.
    rounds_elsewhere, windows_elsewhere
        The same in other settings.
    tensorflow
        An interpreter that has TensorFlow, to train with that over servers too.
    """

    layouts: tuple[Layout, ...] = _layouts("4", "2", "8")
    models: tuple[str, ...] = tuple(MODELS)
    ratios: tuple[float, ...] = (1.0, 0.5, 2.0)
    contenders: tuple[str, ...] = ()
    clip: bool = False
    pacing: tuple[bool, ...] = (True, False)
    rate_mbit_s: float = 200.0
    inner_mbit_s: float | None = None
    compute_s: float = 0.4
    rounds: int = 3
    windows: int = 3
    rounds_elsewhere: int = 2
    windows_elsewhere: int = 2
    tensorflow: Path | None = None
    tensorflow_steps: int = 12


# Each kind of record, as it is measured unless options say otherwise.
GRIDS = {
    "allreduce": Grid(),
    "real": Grid(layouts=_layouts("2"), models=tuple(REAL_MODELS)),
    "clipped": Grid(clip=True),
    "frameworks": Grid(
        layouts=_layouts("4"),
        models=("resnet50", "transformer"),
        ratios=(1.0,),
        contenders=tuple(name for pair in FRAMEWORK_PAIRS.values() for name in pair),
    ),
    "hsdp": Grid(
        layouts=_layouts("2x2", "2x4"),
        models=("resnet50", "transformer"),
        ratios=(1.0,),
        rate_mbit_s=4.0,
        inner_mbit_s=600.0,
        compute_s=2.4,
        windows=2,
    ),
    "servers": Grid(layouts=_layouts("2+2", "4+4", "4+1", "4c"), models=("resnet50", "vgg16")),
}


def run(
    grid: Grid,
    tell: Tell,
    *,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure a grid and return the record, JSON-ready.

    Parameters
    ----------
    keep
        Called with the record so far after every setting, so that an interrupted run is not lost.

    Raises
    ------
    TestbedUnavailable, WrongRate
        Before anything is measured.
    """
    started = time.monotonic()
    record: dict[str, Any] = {"conditions": _conditions(grid), "networks": [], "settings": []}
    for layout in grid.layouts:
        with hosts([_link(grid, layout)] * layout.num_hosts) as on:
            inner_rates: list[float] = []
            for first in range(0, len(on), layout.shards) if layout.shards > 1 else ():
                replica = join_directly(on[first : first + layout.shards], rate_mbit_s=grid.inner_mbit_s)
                # Not refused: what their collectives take is measured with all processes at work.
                inner_rates += measure_rates(replica, seconds=0.5)
            rates = verify_rates(on)
            within = f", within a replica {min(inner_rates):.0f}" if inner_rates else ""
            tell(f"{layout}: {min(rates):.0f} Mbit/s of payload each way{within}")
            costs = _costs(on, layout, clip=grid.clip)
            record["networks"].append(_network(on, layout, rates, costs) | {"inner_mbit_s": inner_rates})
            for contest in _contests(on, layout, grid, costs, tell):
                result = _measured(contest, grid, tell)
                record["settings"].append(as_document(result))
                record["conditions"]["took_s"] = time.monotonic() - started
                tell(_line(result))
                keep(record)
    return record


def _link(grid: Grid, layout: Layout) -> Link:
    """Return the link of each host; one between replicas is so slow that a large packet would be a burst."""
    if layout.shards > 1:
        return Link(rate_mbit_s=grid.rate_mbit_s, packet_bytes=_PACKET_BETWEEN_REPLICAS)
    return Link(rate_mbit_s=grid.rate_mbit_s)


def _costs(on: list[Host], layout: Layout, *, clip: bool) -> Costs:
    """Measure what this layout's contenders pay."""
    if layout.servers:
        # Where each worker's host has a server, rings compete too.
        ring: dict[str, AllReduce] = {"torch": capture_cost(on, "torch")} if layout.colocated else {}
        from benchmarks.harness.training.over_servers import measure_cluster

        return Costs(allreduce=ring, cluster=measure_cluster(on, layout))
    if layout.shards > 1:  # hosts that hold the same shard
        cost = capture_cost(on, "torch", largest_bytes=_LARGEST_OF_SHARDS, shards=layout.shards)
        return Costs(allreduce={"torch": cost})
    return Costs(
        allreduce={"torch": capture_cost(on, "torch"), "horovod": capture_cost(on, "horovod")},
        halves={"torch": capture_halves(on, "torch"), "horovod": capture_halves(on, "horovod")}
        if clip
        else {},
    )


def _network(on: list[Host], layout: Layout, rates: list[float], costs: Costs) -> dict[str, Any]:
    return {
        "layout": str(layout),
        "rate_mbit_s": rates,
        "congestion_control": congestion_control(on[0]),
        "allreduce": {name: cost.model_dump(mode="json") for name, cost in costs.allreduce.items()},
        "halves": {
            name: [half.model_dump(mode="json") for half in both] for name, both in costs.halves.items()
        },
        "exchange": costs.cluster.exchange.model_dump(mode="json") if costs.cluster else None,
    }


def _contests(on: list[Host], layout: Layout, grid: Grid, costs: Costs, tell: Tell) -> Iterator[Contest]:
    """Yield what the grid has for these hosts, one setting after another."""
    contest = partial(Contest, on=on, layout=layout, costs=costs, clip=grid.clip)
    for ratio in grid.ratios:
        for model in grid.models:
            if model in MODELS:
                fitted = _fitted(model, layout, grid, costs, ratio)
                inner = measure_inner_times(on, layout, fitted.whole) if layout.shards > 1 else None
                for paced in grid.pacing if layout.servers else (False,):
                    yield contest(model=model, ratio=ratio, fitted=fitted, paced=paced, inner=inner)
    for model in grid.models:
        if model in REAL_MODELS:
            fitted = captured(model, on, costs.allreduce["torch"], ("torch", "horovod"))
            tell(f"  {model}, real compute: {dict(fitted.contention)}")
            ratio = round(communication_ratio(fitted.profile), 2)
            yield contest(model=f"{model}, real compute", ratio=ratio, fitted=fitted)


def _fitted(model: str, layout: Layout, grid: Grid, costs: Costs, ratio: float) -> Fitted:
    workers = layout.workers // layout.shards  # of a shard's all-reduce
    if costs.cluster is None:
        cost = costs.allreduce["torch"]
    else:  # ratios are of bytes alone: what a part loses depends on how many parts there are
        cost = costs.cluster.exchange.model_copy(update={"partition_s": 0.0})
    fitted = fit(
        build(model, device_tflops=DEVICE_TFLOPS, batch=MODELS[model], workers=workers),
        workers=workers,
        allreduce=cost,
        compute_s=grid.compute_s,
        ratio=ratio,
    )
    return replace(fitted, shards=layout.shards)


def competing(grid: Grid, layout: Layout, ratio: float) -> list[Contender]:
    """Return who competes in a setting."""
    everyone = (layout, ratio) == EVERY_CONTENDER_AT
    if layout.servers:
        known = [each.name for each in OVER_SERVERS] + [*(RINGS if layout.colocated else ())]
        possible = [*known, *(each.name for each in TICTAC)]
    elif layout.shards > 1:
        known = possible = [each.name for each in HSDP]
    else:
        known = [*(CLIPPING if grid.clip else UNCLIPPED if everyone else CORE)]
        possible = [each.name for each in (*ALLREDUCE, *FRAMEWORKS)]
    return [BY_NAME[name] for name in (grid.contenders or known) if name in possible]


def _measured(contest: Contest, grid: Grid, tell: Tell) -> SettingResult:
    layout, ratio, fitted = contest.layout, contest.ratio, contest.fitted
    everyone = (layout, ratio) == EVERY_CONTENDER_AT
    thorough = everyone or fitted.real is not None or layout.servers > 0 or layout.shards > 1
    effort = Effort(
        rounds=grid.rounds if thorough else min(grid.rounds, grid.rounds_elsewhere),
        windows=grid.windows if thorough else grid.windows_elsewhere,
        bucket_sizes_mib=DDP_SWEEP_MIB if everyone else DDP_SWEEP_MIB[1::2],
    )
    unmodified = None
    if grid.tensorflow is not None and layout.servers and contest.paced == grid.pacing[0]:
        from benchmarks.harness.training.tensorflow_peer import run_unmodified

        unmodified = partial(
            run_unmodified, grid.tensorflow, contest.on, layout, fitted.profile, grid.tensorflow_steps
        )
    return measure(
        contest,
        competing(grid, layout, ratio),
        effort,
        lambda text: tell(f"  {contest.model}, {layout}, ratio {ratio:g}: {text}"),
        unmodified=unmodified,
    )


def _line(result: SettingResult) -> str:
    times = ", ".join(
        f"{each.name} {each.iteration_s * 1e3:.0f}" if each.counts else f"{each.name} out"
        for each in (*result.contenders, *result.unmodified)
    )
    bound = f"bound {min((each.bound_s for each in result.contenders), default=0.0) * 1e3:.0f}"
    if known := result.two_wires:
        bound += (
            f" (compute beside inner collectives {known['beside_s'] * 1e3:.0f}, all-reduces alone"
            f" {known['outer_s'] * 1e3:.0f}; all-gathers {sum(known['gather_s']) * 1e3:.0f}, reduce-scatters"
            f" {sum(known['scatter_s']) * 1e3:.0f})"
        )
    return f"{result} (plain {result.plain_error:+.1%}, load {result.load:.1f}): {bound}, {times} ms"


def _conditions(grid: Grid) -> dict[str, Any]:
    """Say when, where, with what and how a record is made."""
    import horovod
    import torch

    link = _link(grid, grid.layouts[0])
    frameworks = sorted({name for each in grid.contenders if (name := BY_NAME[each].framework)})
    return machine() | {
        "torch": torch.__version__,
        "horovod": horovod.__version__,
        "frameworks": {name: version(name) for name in frameworks},
        "burst_ms": link.burst_bytes * 8 / link.rate_mbit_s / 1e3,
        **{
            name: value
            for name, value in asdict(grid).items()
            if name in ("clip", "rate_mbit_s", "inner_mbit_s", "compute_s")
            or name.startswith(("rounds", "windows"))
        },
    }
