"""Overhead of the runtime: time for each segment, hooks, memory, the check of a plan, and overlap.

    python -m benchmarks runtime_overhead [--ranks 2] [--rounds 5] [--json OUT.json]

The first part runs in one process over a transport that does nothing, so that only the runtime's own
work is timed. The second part starts real ranks over Gloo on loopback. There, steps with plain all-reduces
(25 MiB buckets and a barrier) and steps with overlap take turns in the same processes.
"""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.harness.conditions import study_parser, write_json
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import JobService, PlanSource
from pace.runtime.engine.plan import GradientSize, SendPlan, ddp_buckets, plan_locally, plan_plainly
from pace.runtime.engine.sharded_plan import plan_shards_locally, refuse_hanging
from pace.runtime.gates.gradient_gates import set_local_gradient
from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer
from pace.runtime.options import Plan
from pace.runtime.transports.device import Device
from pace.runtime.transports.transport import After, Done, Parts, Sequencing, SumsAlone


class NoTransport(SumsAlone):
    """Ends every all-reduce at once: what remains is the runtime's own time."""

    rank = 0
    size = 1
    sequencing: Sequencing = "decision"
    hand_over_s = 0.0
    device: Device | None = None
    has_halves = False

    def allreduce(
        self,
        segment: torch.Tensor,  # noqa: ARG002
        name: str,  # noqa: ARG002
        done: Done,
        after: After | None = None,  # noqa: ARG002
    ) -> Any:
        """Do nothing."""
        done(None)

    def open_halves(self) -> None:
        """Never called: there are no halves."""
        raise AssertionError

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:  # noqa: ARG002
        """Never called: there are no halves."""
        raise AssertionError(name)

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:  # noqa: ARG002
        """Never called: there are no halves."""
        raise AssertionError(name)

    def gather_aside(self, payload: bytes, name: str) -> list[bytes]:
        """Never called: there are no halves."""
        raise AssertionError((payload, name))

    def decide(self, segment: int | None) -> int:
        """Choose what rank 0 chose."""
        return -1 if segment is None else segment

    def broadcast(self, payload: bytes | None) -> bytes:
        """Return the payload."""
        return payload or b""

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Leave it as it is."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payload."""
        return [payload]

    def close(self, *, failed: bool) -> None:
        """Do nothing: there is nothing to close."""


class FixedPlan(PlanSource):
    """Makes the plan that is to be measured."""

    def __init__(self, make_plan: Callable[[list[GradientSize]], SendPlan]) -> None:
        super().__init__(NoTransport(), Plan(), JobService(), timeout_s=60.0)
        self._make_plan = make_plan

    def make(self, gradients: list[GradientSize]) -> SendPlan:
        """Return the plan."""
        return self._make_plan(gradients)


def wrap_alone(
    model: nn.Module,
    make_plan: Callable[[list[GradientSize]], SendPlan],
    order: Any,
) -> WrappedOptimizer:
    """Wrap SGD over a transport that does nothing."""
    options = WrapperOptions(plan=Plan(order=order), mode="overlap", timeout_s=60.0)
    return WrappedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6),
        model,
        transport=NoTransport(),
        prepare=lambda: (options, FixedPlan(make_plan)),
    )


def measure_alone(rounds: int) -> dict[str, Any]:
    """Time engine, hand-over and an idle gate in this process; medians in microseconds."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(100)))
    num_gradients = 200
    found: dict[str, Any] = {}
    for order in ("static", "adaptive"):
        optimizer = wrap_alone(model, lambda sizes: plan_locally(sizes, max_group_bytes=1), order)
        engine = optimizer._rounds.engine
        _one_step(model, optimizer)
        optimizer.synchronize()
        per_segment = []
        for _ in range(20 * rounds):
            start = time.perf_counter()
            for group in range(num_gradients):
                engine.submit(group)
            for group in range(num_gradients):
                engine.wait(group)
            per_segment.append((time.perf_counter() - start) / num_gradients)
        found[f"engine_per_segment_us_{order}"] = statistics.median(per_segment) * 1e6
        optimizer.close()

    optimizer = wrap_alone(model, plan_locally, "static")
    _one_step(model, optimizer)
    optimizer.synchronize()
    gradients = [torch.zeros_like(slot.view) for slot in optimizer._rounds.slots]
    hand_over = []
    for _ in range(20 * rounds):
        optimizer.zero_grad()
        for slot, gradient in zip(optimizer._rounds.slots, gradients, strict=True):
            set_local_gradient(slot.parameter, gradient)
        start = time.perf_counter()
        for slot in optimizer._rounds.slots:
            for hook in slot.parameter._post_accumulate_grad_hooks.values():
                hook(slot.parameter)
        hand_over.append((time.perf_counter() - start) / num_gradients)
        optimizer.step()
        optimizer.synchronize()
    found["hand_over_per_gradient_us"] = statistics.median(hand_over) * 1e6
    gated = model[0]._parameters
    reads = []
    for _ in range(20 * rounds):
        start = time.perf_counter()
        for _ in range(1000):
            gated["weight"]
        reads.append((time.perf_counter() - start) / 1000)
    found["idle_gate_us"] = statistics.median(reads) * 1e6
    found["gradient_bytes"] = sum(g.numel() * g.element_size() for g in gradients)
    found["buffer_bytes"] = sum(group.buffer.nbytes for group in optimizer._rounds.groups)
    _one_step(model, optimizer)
    optimizer.synchronize()
    inside = {group.buffer.untyped_storage().data_ptr() for group in optimizer._rounds.groups}
    outside = [s for s in optimizer._rounds.slots if s.shown.untyped_storage().data_ptr() not in inside]
    found["gradients_outside_buffers"] = len(outside)
    optimizer.close()
    found |= {f"check_per_1000_transfers_us_{name}": us for name, us in _check_us(rounds).items()}
    return found


def _check_us(rounds: int) -> dict[str, float]:
    """Time what every rank proves of a plan before it is adopted: that it cannot hang."""
    sizes = [GradientSize(name=f"g{number}", size_bytes=4096, dtype="float32") for number in range(1000)]
    found = {}
    for name, plan in (
        ("allreduce", plan_locally(sizes, max_group_bytes=1)),
        ("sharded", plan_shards_locally(sizes, 2, max_group_bytes=1)),
    ):
        seconds = []
        for _ in range(20 * rounds):
            start = time.perf_counter()
            refuse_hanging(plan)
            seconds.append((time.perf_counter() - start) / len(plan.segments) * 1000)
        found[name] = statistics.median(seconds) * 1e6
    return found


def _one_step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(model(torch.randn(4, 32)).sum())
    optimizer.step()


def measure_ranks(ranks: int, rounds: int) -> dict[str, Any]:
    """Start ranks and return what the slowest measured."""
    said = run_ranks(ranks, run_rank, rounds)
    columns: dict[str, list[float]] = {
        name: [max(pair) for pair in zip(*(each[name] for each in said), strict=True)] for name in said[0]
    }
    ratios = [o / p for o, p in zip(columns["overlap"], columns["plain"], strict=True)]
    return {
        "plain_iteration_ms": statistics.median(columns["plain"]) * 1e3,
        "overlap_iteration_ms": statistics.median(columns["overlap"]) * 1e3,
        "overlap_over_plain": statistics.median(ratios),
        "ratios": ratios,
    }


def run_rank(_rank: int, rounds: int) -> dict[str, list[float]]:
    """Time plain operation and overlap alternately; one rank of ``measure_ranks``."""
    import torch.distributed as dist

    from pace.runtime.torch import DistributedOptimizer

    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers)
    inputs = torch.randn(256, 512)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), model, mode="overlap"
    )
    overlap = optimizer._plan
    plain = plan_plainly(ddp_buckets(_sizes(model)))
    durations: dict[str, list[float]] = {"plain": [], "overlap": []}
    for _ in range(rounds):
        for name, plan in (("plain", plain), ("overlap", overlap)):
            optimizer._switch(plan, barrier=name == "plain")
            for step in range(23):
                if step == 3:
                    optimizer.synchronize()
                    dist.barrier()
                    start = time.perf_counter()
                optimizer.zero_grad()
                torch.autograd.backward(model(inputs).pow(2).mean())
                optimizer.step()
            optimizer.synchronize()
            durations[name].append((time.perf_counter() - start) / 20)
    optimizer.close()
    return durations


def _sizes(model: nn.Module) -> list[GradientSize]:
    from pace.runtime.control.parameters import gradient_sizes

    return gradient_sizes(dict(model.named_parameters()))


def main() -> None:
    """Measure and print."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--ranks", 2, "number of ranks")
    parser.add_number("--rounds", 5, "number of measured rounds")
    arguments = parser.parse_args()
    found = {
        "alone": measure_alone(arguments.rounds),
        "ranks": measure_ranks(arguments.ranks, arguments.rounds),
    }
    print(json.dumps(found, indent=2))
    write_json(arguments.json, found)


def run_ranks(ranks: int, main: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``main(rank, *arguments)`` in processes of one group and return what each returned.

    `main` is a function of a module, and what it is given and returns can be pickled.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # processes inherit it
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(ranks, maxtasksperchild=1) as pool:
        given = [(rank, ranks, f"file://{folder}/rendezvous", main, arguments) for rank in range(ranks)]
        return pool.starmap(_joined, given, chunksize=1)


def _joined(
    rank: int, ranks: int, rendezvous: str, main: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    found = main(rank, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    return found
