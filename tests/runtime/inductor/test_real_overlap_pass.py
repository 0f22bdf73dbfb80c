"""Torch's own overlap pass and its re-enactment by the simulator make the same plan of small graphs."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.utils._runtime_estimation as roofline
from torch import fx
from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing

from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.formats.node_list import COLLECTIVES
from pace.runtime.inductor.fx_program import FxProgram, bytes_of, is_collective, is_wait, read_fx
from pace.runtime.inductor.node_times import NodeTimes
from pace.runtime.inductor.rewrite import is_started
from pace.simulation.graph.policies import Inductor
from pace.simulation.graph.run import run_graph_policy
from tests.runtime.inductor.graphs import RANKS, absent_ranks, gathered, scattered, traced

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.skipif(torch.__version__ < "2.13", reason="the pass of torch 2.13 is re-enacted"),
]
MEBIBYTE = 1 << 20
Step = tuple[str, str, int]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a process group with ranks that do not exist.

    Torch asks Triton for the rates of a device even where all times are given.
    """
    monkeypatch.setattr(roofline, "get_gpu_dram_gbps", lambda: 1.0)
    monkeypatch.setattr(roofline, "get_device_tflops", lambda _: 1.0)
    with absent_ranks() as name:
        yield name


def layers_of(group: str, widths: Sequence[int], *, backward: bool) -> fx.GraphModule:
    """Return layers whose weights have different sizes, so that a bucket's bytes tell its members."""
    shards = [torch.ones(width // RANKS, following) for width, following in itertools.pairwise(widths)]

    def step(batch: torch.Tensor, *shards: torch.Tensor) -> list[torch.Tensor]:
        kept = []
        for shard in shards:
            kept.append(batch)
            batch = batch @ gathered(shard, group)
        if not backward:
            return [batch]
        gradients = []
        gradient = batch
        for shard, before in zip(reversed(shards), reversed(kept), strict=True):
            gradients.append(scattered(before.t() @ gradient, group))
            gradient = gradient @ gathered(shard, group).t()
        return gradients

    return traced(step, torch.ones(4, widths[0]), *shards)


def timed(program: FxProgram, cost: AffineAllReduce) -> CollectiveGraph:
    """Return the document of a program on a slow device."""
    times = NodeTimes(torch.device("cpu"), DeviceRates(tflops=1e-6, memory_gbytes_per_s=1.0))
    return program.timed(
        {node.name: times.duration_s(node) for node in program.nodes},
        dict.fromkeys(program.calls.values(), cost),
        wires=("network",) * len(program.groups),
        copy_bytes_per_s=1e12,
        compute_slowdown=1.0,
    )


def by_torch(
    module: fx.GraphModule, graph: CollectiveGraph, cost: AffineAllReduce, cap_mb: float
) -> list[Step]:
    """Run torch's pass with the times of a document; return its matrix products, collectives and waits."""
    seconds = {node.name: node.duration_s for node in graph.nodes}
    curve = cost.cost(RANKS)

    def estimated(node: fx.Node, size: int | None) -> float:
        if is_collective(node):
            own = bytes_of(node.all_input_nodes[0].meta["val"]) if size is None else size
            return float(curve(float(own))) * 1e3
        return seconds.get(node.name, 0.0) * 1e3

    made = schedule_overlap_bucketing(
        module,
        collective_bucketing=True,
        custom_runtime_estimation=estimated,
        compute_estimator="analytical",
        pre_bucketing_fsdp_collectives_bucket_cap_mb=cap_mb,
    )
    steps: list[Step] = []
    sent: dict[fx.Node, Step] = {}
    for node in made.graph.nodes:
        if is_started(node):
            target: Any = node.target
            op = COLLECTIVES[target._opname.removesuffix("_out")]
            sent[node] = ("issue", op, bytes_of(node.all_input_nodes[0].meta["val"]))
            steps.append(sent[node])
        elif is_wait(node):
            steps.append(("wait", *sent[node.all_input_nodes[0]][1:]))
        elif "mm" in node.name:
            steps.append(("op", node.name, 0))
    return steps


def by_pace(graph: CollectiveGraph, cap_mb: float) -> list[Step]:
    """Return the same of the re-enacted pass."""
    run = run_graph_policy(graph, Inductor(bucket_cap_mb=cap_mb))
    bucket_of = {member: bucket for bucket in run.plan.buckets for member in bucket}
    steps: list[Step] = []
    done: set[tuple[str, int]] = set()
    for number in run.plan.order.tolist():
        node = graph.nodes[number]
        start = number if node.waits_for is None else graph.numbers[node.waits_for]
        call = graph.nodes[start].collective
        if call is None:
            if "mm" in node.name:
                steps.append(("op", node.name, 0))
            continue
        bucket = bucket_of.get(start, (start,))
        kind = "issue" if node.waits_for is None else "wait"
        if (kind, bucket[0]) not in done:
            done.add((kind, bucket[0]))
            steps.append((kind, call.op, int(run.program.input_bytes[list(bucket)].sum())))
    return steps


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("latency_s", [1e-6, 2e-5])
@pytest.mark.parametrize("cap_bytes", [1, 4000, MEBIBYTE])
@pytest.mark.parametrize("num_layers", [2, 5])
def test_the_reenacted_pass_plans_as_torch_does(
    group: str, num_layers: int, cap_bytes: int, latency_s: float, backward: bool
) -> None:
    """The same buckets, issued at the same places between the same matrix products, and waited for there."""
    widths = [8, 12, 20, 16, 28, 24][: num_layers + 1]
    module = layers_of(group, widths, backward=backward)
    cost = AffineAllReduce(latency_s=latency_s, seconds_per_byte=1e-8)
    graph = timed(read_fx(module.graph, "graph"), cost)
    cap_mb = cap_bytes / MEBIBYTE
    assert by_pace(graph, cap_mb) == by_torch(module, graph, cost, cap_mb)
