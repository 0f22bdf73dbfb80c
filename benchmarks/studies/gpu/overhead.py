"""What the runtime costs an iteration in which nothing has to be sent, on the host and on the device."""

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.studies.gpu.findings import Findings, Setting
from benchmarks.studies.gpu.loops import settled
from benchmarks.studies.gpu.models import workloads
from benchmarks.studies.gpu.one_rank import WAYS, one_rank, trained
from benchmarks.studies.runtime_overhead import NoTransport, wrap_alone
from pace.runtime.engine.plan import plan_locally
from pace.runtime.transports.clock import clock_for
from pace.runtime.transports.device import Device, device_of
from pace.runtime.transports.transport import After, Done

ROUNDS = 3
MODEL = "GPT-2 small"


def run(findings: Findings, setting: Setting) -> None:
    """See ``parts``."""
    workload = workloads(dry=setting.dry)[MODEL]
    findings.fact("model", f"{MODEL}, fp32, AdamW, {workload.batch_size} samples a batch, one rank")
    iterations = 3 if setting.dry else 10
    host_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    device_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    failed: set[str] = set()
    with findings.row(training="the engine alone, one segment") as row:
        row["host until it could go on ms"] = engine_ms(setting, rounds=3 if setting.dry else 50)
    with one_rank(setting):
        for _ in range(1 if setting.dry else ROUNDS):
            for way in WAYS:
                if way in failed:
                    continue
                found = time_way(findings, setting, way, iterations)
                if found is None:
                    failed.add(way)
                    continue
                host_ms[way].append(found[0])
                device_ms[way].append(found[1])
    plain_ms = median(device_ms["plain"]) if device_ms["plain"] else None
    for way in WAYS:
        if not device_ms[way]:
            continue
        with findings.row(training=way) as row:
            row["iteration ms"] = median(device_ms[way])
            row["host until it could go on ms"] = median(host_ms[way])
            row["over plain"] = None if plain_ms is None else row["iteration ms"] / plain_ms
            row["rounds ms"] = device_ms[way]


class NothingOnDevice(NoTransport):
    """Ends every all-reduce at once on the device's stream for communication."""

    def __init__(self, device: Device | None) -> None:
        self.device = device

    def allreduce(
        self,
        segment: torch.Tensor,  # noqa: ARG002
        name: str,  # noqa: ARG002
        done: Done,
        after: After | None = None,  # noqa: ARG002
    ) -> Any:
        """Queue nothing, and return the moment after it."""
        if self.device is None:
            done(None)
            return None
        with self.device.apart():
            moment = self.device.now()
        done(None)
        return moment


def engine_ms(setting: Setting, *, rounds: int) -> float:
    """Return the host's median milliseconds for handing over a group of one segment and waiting for it."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(100))).to(setting.device)
    if setting.dry:
        from tests.runtime.engine.queued_device import LaggingDevice

        device: Any = LaggingDevice(0)
    else:
        device = device_of(model)
    optimizer = wrap_alone(
        model, lambda sizes: plan_locally(sizes, max_group_bytes=1), "static", NothingOnDevice(device)
    )
    torch.autograd.backward(model(torch.randn(4, 32, device=setting.device)).sum())
    optimizer.step()
    optimizer.synchronize()
    engine = optimizer._rounds.engine
    num_groups = 200
    found = []
    for _ in range(rounds):
        started = settled(setting.device)
        for group in range(num_groups):
            engine.submit(group)
        for group in range(num_groups):
            engine.wait(group)
        found.append((time.perf_counter() - started) / num_groups)
    optimizer.close()
    if setting.dry:
        device.close()
    return median(found) * 1e3


def time_way(findings: Findings, setting: Setting, way: str, iterations: int) -> tuple[float, float] | None:
    """Return milliseconds an iteration for the host and the device; None after a failure, which is kept."""
    workload = workloads(dry=setting.dry)[MODEL]
    try:
        model = workload.model(setting.device)
        with trained(way, model, workload, setting.device) as (step, finish):
            for _ in range(4):
                step()
            finish()
            started = settled(setting.device)
            clock = clock_for(model)
            stamps = [clock.now()]
            for _ in range(iterations):
                step()
                stamps.append(clock.now())
            queued = time.perf_counter()
            finish()
            settled(setting.device)
            at_s = clock.seconds(stamps)
    except Exception as error:
        findings.check(False, f"{way}: {type(error).__name__}: {error}")
        return None
    return (queued - started) / iterations * 1e3, median(b - a for a, b in pairwise(at_s)) * 1e3
