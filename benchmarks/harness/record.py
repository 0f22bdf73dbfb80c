"""The whole record: every setting of a grid, measured one after another on hosts made for it."""

import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.capture import capture_cost, capture_halves
from benchmarks.harness.contenders import BY_NAME, CLIPPING, CORE, DDP_SWEEP_MIB, HSDP, UNCLIPPED, Backend
from benchmarks.harness.measure import Effort, Halves, measure
from benchmarks.harness.network.hosts import BURST_MS, Host, Link, congestion_control, hosts, join_directly
from benchmarks.harness.network.rates import verify_rates
from benchmarks.harness.results import SettingResult, as_document
from benchmarks.harness.workload.real import captured
from benchmarks.harness.workload.replicas import REPLICAS, SHARDS
from benchmarks.harness.workload.scaling import Fitted, fit
from pace.documents.collective_costs import SampledAllReduce
from pace.models import build, communication_ratio
from pace.version import __version__

# Images or tokens of one device in an iteration; times are scaled, so only the balance of layers follows.
MODELS = {"vgg16": 64, "resnet50": 32, "transformer": 2048, "inception-v3": 32}
DEVICE_TFLOPS = 5.6

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What a record covers.

    Attributes
    ----------
    rate_mbit_s
        Of every host's link, both ways.
    compute_s
        Length of the emulated window without communication.
    every_contender_at
        (workers, ratio) where all contenders compete; elsewhere the core ones do.
    real_models
        Models with real compute besides, trained on two hosts where two are among `workers`.
    hsdp_models
        Models on two replicas of two shards each, where four hosts are among `workers`.
    only
        Names of contenders, in place of both.
    clip
        Whether gradients are clipped by their global norm.
    rounds, windows
        Turns of each contender where all compete or compute is real, and windows of each turn.
    rounds_elsewhere, windows_elsewhere
        The same elsewhere.
    """

    models: tuple[str, ...] = tuple(MODELS)
    workers: tuple[int, ...] = (4, 2, 8)
    ratios: tuple[float, ...] = (1.0, 0.5, 2.0)
    rate_mbit_s: float = 200.0
    compute_s: float = 0.4
    real_models: tuple[str, ...] = ()
    hsdp_models: tuple[str, ...] = ()
    every_contender_at: tuple[int, float] = (4, 1.0)
    only: tuple[str, ...] = ()
    clip: bool = False
    rounds: int = 3
    windows: int = 3
    rounds_elsewhere: int = 2
    windows_elsewhere: int = 2


def run(
    grid: Grid,
    tell: Tell,
    *,
    traces: dict[tuple[str, int, float], Any] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
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
    for workers in grid.workers:
        with hosts([Link(rate_mbit_s=grid.rate_mbit_s)] * workers) as on:
            network, costs, halves = _network(on, clip=grid.clip)
            tell(f"{workers} hosts, {network['rate_mbit_s'][0]:.0f} Mbit/s of payload each way")
            record["networks"].append(network)
            for result in _settings(on, grid, costs, halves, tell, traces):
                record["settings"].append(as_document(result))
                record["conditions"]["took_s"] = time.monotonic() - started
                tell(_line(result))
                if keep is not None:
                    keep(record)
    return record


def _settings(
    on: Sequence[Host],
    grid: Grid,
    costs: dict[Backend, SampledAllReduce],
    halves: dict[Backend, Halves],
    tell: Tell,
    traces: dict[tuple[str, int, float], Any] | None,
) -> Iterator[SettingResult]:
    """Measure what the grid has for this number of hosts, one setting after another."""
    for ratio in grid.ratios:
        for model in grid.models:
            fitted = fit(
                build(model, device_tflops=DEVICE_TFLOPS, batch=MODELS[model], workers=len(on)),
                workers=len(on),
                allreduce=costs["torch"],
                compute_s=grid.compute_s,
                ratio=ratio,
            )
            yield _setting(on, grid, model, ratio, fitted, costs, halves, tell, traces)
    if grid.hsdp_models and len(on) == REPLICAS * SHARDS:
        yield from _hsdp_settings(on, grid, tell, traces)
    for model in grid.real_models if len(on) == 2 else ():
        fitted = captured(model, on, costs["torch"], tuple(costs))
        tell(f"  {model}, real compute: {dict(fitted.contention)}")
        ratio = round(communication_ratio(fitted.profile), 2)
        yield _setting(on, grid, f"{model}, real compute", ratio, fitted, costs, halves, tell, traces)


def _hsdp_settings(
    on: Sequence[Host], grid: Grid, tell: Tell, traces: dict[tuple[str, int, float], Any] | None
) -> Iterator[SettingResult]:
    """Measure the grid's ratios on two replicas; a profile's gradients are shards, its workers replicas."""
    for first in range(0, len(on), SHARDS):
        join_directly(*on[first : first + SHARDS])
    costs: dict[Backend, SampledAllReduce] = {"torch": capture_cost(on[::SHARDS], "torch")}
    for ratio in grid.ratios:
        for model in grid.hsdp_models:
            fitted = fit(
                build(model, device_tflops=DEVICE_TFLOPS, batch=MODELS[model], workers=REPLICAS),
                workers=REPLICAS,
                allreduce=costs["torch"],
                compute_s=grid.compute_s,
                ratio=ratio,
            )
            fitted = replace(fitted, shards=SHARDS)
            yield _setting(on, grid, f"{model}, HSDP", ratio, fitted, costs, {}, tell, traces)


def _network(
    on: Sequence[Host], *, clip: bool
) -> tuple[dict[str, Any], dict[Backend, SampledAllReduce], dict[Backend, Halves]]:
    rates = verify_rates(on)
    backends: tuple[Backend, ...] = ("torch", "horovod")
    costs = {backend: capture_cost(on, backend) for backend in backends}
    halves = {backend: capture_halves(on, backend) for backend in backends} if clip else {}
    network = {
        "workers": len(on),
        "rate_mbit_s": rates,
        "congestion_control": congestion_control(on[0]),
        "allreduce": {backend: cost.model_dump(mode="json") for backend, cost in costs.items()},
        "halves": {
            backend: [half.model_dump(mode="json") for half in both] for backend, both in halves.items()
        },
    }
    return network, costs, halves


def _setting(
    on: Sequence[Host],
    grid: Grid,
    model: str,
    ratio: float,
    fitted: Fitted,
    costs: Mapping[Backend, SampledAllReduce],
    halves: Mapping[Backend, Halves],
    tell: Tell,
    traces: dict[tuple[str, int, float], Any] | None,
) -> SettingResult:
    kept: dict[str, Any] | None = None
    if traces is not None:
        kept = traces[model, len(on), ratio] = {}
    everyone = (len(on), ratio) == grid.every_contender_at
    if fitted.shards > 1:
        names = tuple(contender.name for contender in HSDP)
    else:
        names = CLIPPING if grid.clip else UNCLIPPED if everyone else CORE
    names = tuple(name for name in grid.only if (BY_NAME[name] in HSDP) == (fitted.shards > 1)) or names
    sweep = DDP_SWEEP_MIB if everyone else DDP_SWEEP_MIB[1::2]
    thorough = everyone or fitted.real is not None
    effort = Effort(
        rounds=grid.rounds if thorough else grid.rounds_elsewhere,
        windows=grid.windows if thorough else grid.windows_elsewhere,
        bucket_sizes_mib=sweep,
    )
    return measure(
        on,
        model,
        ratio,
        fitted,
        dict(costs),
        [BY_NAME[name] for name in names],
        effort,
        lambda text: tell(f"  {model}, W={len(on)}, ratio {ratio:g}: {text}"),
        kept,
        clip=grid.clip,
        halves=halves,
    )


def _line(result: SettingResult) -> str:
    times = ", ".join(
        f"{c.name} {c.iteration_s * 1e3:.0f}" if c.counts else f"{c.name} out" for c in result.contenders
    )
    bound = min(contender.bound_s for contender in result.contenders) * 1e3
    return (
        f"{result.model}, W={result.workers}, ratio {result.ratio:g} (plain {result.plain_error:+.1%},"
        f" load {result.load:.1f}): bound {bound:.0f}, {times} ms"
    )


def machine() -> dict[str, Any]:
    """Say when, where and with what a record is made."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "pace": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
        "cores": _cores(),
        "burst_ms": BURST_MS,
    }


def _conditions(grid: Grid) -> dict[str, Any]:
    import horovod

    used = sorted({framework for name in grid.only if (framework := BY_NAME[name].framework)})
    return machine() | {
        "horovod": horovod.__version__,
        "frameworks": {framework: version(framework) for framework in used},
        "rate_mbit_s": grid.rate_mbit_s,
        "compute_s": grid.compute_s,
        "clip": grid.clip,
        "rounds": grid.rounds,
        "rounds_elsewhere": grid.rounds_elsewhere,
        "windows": grid.windows,
        "windows_elsewhere": grid.windows_elsewhere,
    }


def _cores() -> str:
    import os

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} x {model}"


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
