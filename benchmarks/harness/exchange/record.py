"""The record of pushes and pulls: every setting of a grid, one after another on hosts made for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.capture import capture_cost
from benchmarks.harness.exchange.contenders import EXCHANGE_BY_NAME
from benchmarks.harness.exchange.measure import measure_exchange
from benchmarks.harness.exchange.results import ExchangeSetting, as_exchange_document
from benchmarks.harness.layouts import Layout, measure_cluster, parse_layout
from benchmarks.harness.measure import Effort
from benchmarks.harness.network.hosts import Host, Link, congestion_control, hosts
from benchmarks.harness.network.rates import verify_rates
from benchmarks.harness.record import DEVICE_TFLOPS, MODELS, machine
from benchmarks.harness.training.tensorflow_peer import run_unmodified
from benchmarks.harness.workload.scaling import fit
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import AllReduce
from pace.models import build

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeGrid:
    """What a record covers.

    Attributes
    ----------
    pacing
        Whether connections are paced; each value is a setting of its own.
    only
        Names of contenders; all without any.
    tensorflow
        An interpreter that has TensorFlow, to train with that too; once for each layout, model and ratio.
    tensorflow_steps
        That are timed.
    """

    layouts: tuple[Layout, ...] = tuple(map(parse_layout, ("2+2", "4+4", "4+1", "4c")))
    models: tuple[str, ...] = ("resnet50", "vgg16")
    ratios: tuple[float, ...] = (1.0, 0.5, 2.0)
    pacing: tuple[bool, ...] = (True, False)
    rate_mbit_s: float = 200.0
    compute_s: float = 0.4
    only: tuple[str, ...] = ()
    rounds: int = 3
    windows: int = 3
    tensorflow: Path | None = None
    tensorflow_steps: int = 12


def run_exchange(
    grid: ExchangeGrid, tell: Tell, *, keep: Callable[[dict[str, Any]], None] | None = None
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
    conditions = machine() | {
        "rate_mbit_s": grid.rate_mbit_s,
        "compute_s": grid.compute_s,
        "rounds": grid.rounds,
        "windows": grid.windows,
    }
    record: dict[str, Any] = {"exchange": "ps", "conditions": conditions, "networks": [], "settings": []}
    for layout in grid.layouts:
        with hosts([Link(rate_mbit_s=grid.rate_mbit_s)] * layout.num_hosts) as on:
            rates = verify_rates(on)
            cluster = measure_cluster(on, layout)
            ring = capture_cost(on, "torch") if layout.colocated else None
            record["networks"].append(
                {
                    "layout": str(layout),
                    "rate_mbit_s": rates,
                    "congestion_control": congestion_control(on[0]),
                    "exchange": cluster.exchange.model_dump(mode="json"),
                }
            )
            tell(f"{layout}: {min(rates):.0f} Mbit/s of payload each way")
            for setting in _settings(on, layout, grid, cluster, ring, tell):
                record["settings"].append(as_exchange_document(setting))
                conditions["took_s"] = time.monotonic() - started
                tell(line_of(setting))
                if keep is not None:
                    keep(record)
    return record


def _settings(
    on: Sequence[Host],
    layout: Layout,
    grid: ExchangeGrid,
    cluster: Cluster,
    ring: AllReduce | None,
    tell: Tell,
) -> Iterator[ExchangeSetting]:
    # Ratios are of bytes alone: what a part loses depends on how many parts there are.
    per_byte = cluster.exchange.model_copy(update={"partition_s": 0.0})
    effort = Effort(rounds=grid.rounds, windows=grid.windows)
    contenders = [EXCHANGE_BY_NAME[name] for name in grid.only or EXCHANGE_BY_NAME]
    for ratio in grid.ratios:
        for model in grid.models:
            fitted = fit(
                build(model, device_tflops=DEVICE_TFLOPS, batch=MODELS[model], workers=layout.workers),
                workers=layout.workers,
                allreduce=per_byte,
                compute_s=grid.compute_s,
                ratio=ratio,
            )
            for number, paced in enumerate(grid.pacing):
                unmodified = None
                if grid.tensorflow is not None and number == 0:
                    unmodified = partial(
                        run_unmodified, grid.tensorflow, on, layout, fitted.profile, grid.tensorflow_steps
                    )
                yield measure_exchange(
                    on,
                    layout,
                    model,
                    ratio,
                    fitted,
                    cluster,
                    ring,
                    contenders,
                    effort,
                    lambda text, m=model, r=ratio: tell(f"  {m}, {layout}, ratio {r:g}: {text}"),  # type: ignore[misc]  # bound at once
                    paced=paced,
                    unmodified=unmodified,
                )


def line_of(setting: ExchangeSetting) -> str:
    """Say in one line what a setting took."""
    times = ", ".join(
        f"{each.name} {each.iteration_s * 1e3:.0f}" if each.counts else f"{each.name} out"
        for each in setting.contenders
    )
    others = "".join(
        f", {run.name} {run.iteration_s * 1e3:.0f}" for run in setting.unmodified if run.windows_s
    )
    bound = min((each.bound_s for each in setting.contenders), default=0.0) * 1e3
    paced = "paced" if setting.pacing_bytes_per_s else "not paced"
    return (
        f"{setting.model}, {setting.layout}, ratio {setting.ratio:g}, {paced} (plain"
        f" {setting.plain_error:+.1%}, load {setting.load:.1f}): bound {bound:.0f}, {times}{others} ms"
    )
