"""Planned FX graphs return the bits of the graphs that they were made from."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx

import pace
from pace.device_rates import DeviceRates
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.schedule import Schedule
from pace.errors import InvalidGraph
from pace.runtime.inductor.fx_program import FxProgram, complete_values, is_collective, read_fx
from pace.runtime.inductor.node_times import NodeTimes
from pace.runtime.inductor.rewrite import _fuse, apply_plan, take_sizes_after_waits, tie
from pace.whatif.graph_ranks import with_ranks
from tests.runtime.inductor.graphs import (
    OPS,
    RANKS,
    WIDTH,
    WithoutNetwork,
    absent_ranks,
    gathered,
    iteration,
    scattered,
    traced,
)

LATE = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)
WIDE = AffineAllReduce(latency_s=1e-9, seconds_per_byte=1e-6)


@pytest.fixture
def group() -> Iterator[str]:
    """Name of a process group with ranks that do not exist."""
    with absent_ranks() as name:
        yield name


def timed(program: FxProgram, cost: AffineAllReduce) -> CollectiveGraph:
    """Return the document of a program on a slow device."""
    times = NodeTimes(torch.device("cpu"), DeviceRates(tflops=1e-6, memory_gbytes_per_s=1.0))
    return program.timed(
        {node.name: times.duration_s(node) for node in program.nodes},
        dict.fromkeys(program.calls.values(), cost),
        wires=("network",) * len(program.groups),
        copy_bytes_per_s=times.memory_bytes_per_s,
        compute_slowdown=1.0,
    )


def planned(module: fx.GraphModule, cost: AffineAllReduce) -> tuple[FxProgram, CollectiveGraph, Schedule]:
    """Plan a graph and rewrite it."""
    program = read_fx(module.graph, "graph")
    graph = timed(program, cost)
    schedule = pace.optimize(graph, Options(exchange="graph"))
    assert pace.check(graph, schedule) == []
    apply_plan(module.graph, program, schedule)
    module.recompile()
    return program, graph, schedule


@pytest.mark.parametrize(("cost", "has_buckets"), [(LATE, True), (WIDE, False)])
def test_planned_graphs_return_the_same_bits(group: str, cost: AffineAllReduce, has_buckets: bool) -> None:
    """With buckets where latency rules, and without; collectives are issued as the plan says."""
    module, inputs = iteration(group, layers=6)
    expected, before = WithoutNetwork(copy.deepcopy(module)).run_all(inputs)
    _, graph, schedule = planned(module, cost)
    found, calls = WithoutNetwork(module).run_all(inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    kinds = {"all-gather": "all_gather_into_tensor", "reduce-scatter": "reduce_scatter_tensor"}
    assert calls == [
        (kinds.get(transfer.op, "all_reduce"), transfer.size_bytes // 4) for transfer in schedule.transfers
    ]
    assert (len(calls) < len(before)) == has_buckets
    assert schedule.predicted.iteration_s < sum(node.duration_s for node in graph.nodes) + sum(
        float(cost.cost(RANKS)(float(elements * 4))) for _, elements in before
    )


def test_shards_and_their_group_are_read(group: str) -> None:
    """Shards that are gathered twice count once, and what-ifs of other ranks change all of the group."""
    module, _ = iteration(group, layers=2)
    graph = read_fx(module.graph, "test").untimed
    assert graph.resident_shard_bytes == 2 * WIDTH // RANKS * WIDTH * 4
    assert {each.process_group for each in graph.communicators} == {"group 0"}
    wider = with_ranks(graph, 2 * RANKS)
    assert {each.ranks for each in wider.communicators} == {2 * RANKS}
    assert wider.resident_shard_bytes == graph.resident_shard_bytes // 2


def test_ties_keep_the_order(group: str) -> None:
    """The dependencies for Inductor's scheduler move no node."""
    module, _ = iteration(group, layers=3)
    planned(module, LATE)
    order = [node.name for node in module.graph.nodes if node.op == "call_function"]
    tie(module.graph)
    module.graph.lint()
    assert [node.name for node in module.graph.nodes if node.op == "call_function"] == order
    tied = [node for node in module.graph.nodes if "control_deps" in str(node.target)]
    assert len(tied) >= 8


@pytest.mark.parametrize(("device", "is_bucket"), [("cpu", True), ("meta", False)])
def test_a_single_gather_is_a_bucket_on_cpus_only(group: str, device: str, is_bucket: bool) -> None:
    """Over Gloo, two gathers in flight outside of buckets may crash the process."""
    module = traced(lambda shard: gathered(shard, group) + 1, torch.ones(2, WIDTH, device=device))
    planned(module, WIDE)
    into = OPS.all_gather_into_tensor_out if is_bucket else OPS.all_gather_into_tensor
    assert [node.target for node in module.graph.nodes if "all_gather_into_tensor" in str(node.target)] == [
        into.default
    ]


def test_a_graph_of_real_size_is_planned(group: str) -> None:
    """A model of 60 layers has 180 collectives."""
    module, inputs = iteration(group, layers=60)
    expected, before = WithoutNetwork(copy.deepcopy(module)).run_all(inputs)
    planned(module, LATE)
    found, calls = WithoutNetwork(module).run_all(inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert len(calls) < len(before) / 2


def test_writes_keep_their_places(group: str) -> None:
    """A gather reads a shard before it is updated in place, and another one afterwards."""

    def step(batch: torch.Tensor, shard: torch.Tensor) -> list[torch.Tensor]:
        first = batch @ gathered(shard, group)
        shard.copy_(shard - scattered(first.t() @ first, group))
        return [batch @ gathered(shard, group)]

    inputs = [torch.randn(3, WIDTH), torch.randn(WIDTH // RANKS, WIDTH)]
    module = traced(step, *inputs)
    expected, _ = WithoutNetwork(copy.deepcopy(module)).run_all(inputs)
    program, _, _ = planned(module, LATE)
    found, _ = WithoutNetwork(module).run_all(inputs)
    assert torch.equal(found[0], expected[0])
    documents = {node.name: node for node in program.untimed.nodes}
    assert "wait_tensor" in documents["copy_"].deps
    assert "copy_" in documents["all_gather_into_tensor_1"].deps


def test_a_bucket_does_not_read_what_was_written_after_a_cast(group: str) -> None:
    """It does the casts of its members itself, which may be after the shard changed."""

    def step(first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
        cast = first.to(torch.bfloat16)
        first.view(-1).mul_(2)
        return [gathered(each, group) for each in (cast, second.to(torch.bfloat16))]

    inputs = [torch.randn(2, WIDTH) for _ in range(2)]
    module = traced(step, *inputs)
    expected, _ = WithoutNetwork(copy.deepcopy(module)).run_all(inputs)
    _fuse(module.graph, "all-gather", [node for node in module.graph.nodes if is_collective(node)])
    module.recompile()
    found, calls = WithoutNetwork(module).run_all(inputs)
    assert len(calls) == 1
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_gathers_of_complex_numbers_stay_as_they_are(group: str) -> None:
    """Neither Gloo nor NCCL knows complex numbers, which only the functional op sends as real ones."""

    def step(*shards: torch.Tensor) -> list[torch.Tensor]:
        return [gathered(shard, group) for shard in shards]

    module = traced(step, *(torch.ones(2, WIDTH, dtype=torch.complex64) for _ in range(2)))
    planned(module, LATE)
    gathers = [str(node.target) for node in module.graph.nodes if "all_gather" in str(node.target)]
    assert gathers == ["_c10d_functional.all_gather_into_tensor.default"] * 2


def test_a_collective_whose_size_alone_is_read_is_refused(group: str) -> None:
    """By its name, as others without a wait."""
    module = traced(lambda shard: gathered(shard, group), torch.ones(2, WIDTH))
    (gather,) = (node for node in module.graph.nodes if is_collective(node))
    (wait,) = gather.users
    with module.graph.inserting_before(wait):
        size = module.graph.call_function(torch.ops.aten.sym_size.int, (gather, 0))
    wait.replace_all_uses_with(size)
    module.graph.erase_node(wait)
    take_sizes_after_waits(module.graph)
    with pytest.raises(InvalidGraph, match='"all_gather_into_tensor"'):
        read_fx(module.graph, "graph")


def test_nodes_that_other_passes_added_are_read(group: str) -> None:
    """They have no value yet: Inductor sets it after all passes."""
    module, _ = iteration(group, layers=2)
    (product, *_) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    (gather, *_) = module.graph.find_nodes(op="call_function", target=OPS.all_gather_into_tensor.default)
    with module.graph.inserting_after(product):
        negative = module.graph.call_function(torch.ops.aten.neg.default, (product,))
    product.replace_all_uses_with(negative, delete_user_cb=lambda user: user is not negative)
    del gather.meta["val"]
    complete_values(module.graph)
    assert negative.meta["val"].shape == product.meta["val"].shape
    planned(module, LATE)


def test_kept_plans_are_told_from_those_of_other_graphs(group: str) -> None:
    """Nodes and memory are compared, not times."""
    program, other = (read_fx(iteration(group, layers)[0].graph, "graph") for layers in (2, 3))
    assert program.is_of(timed(program, LATE))
    assert not program.is_of(timed(other, LATE))


def test_random_numbers_are_drawn_in_their_order(group: str) -> None:
    """Each draw depends on the one before."""

    def step(shard: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand_like(shard) + gathered(shard, group)[:2], torch.rand_like(shard)]

    program = read_fx(traced(step, torch.randn(2, WIDTH)).graph, "graph")
    documents = {node.name: node for node in program.untimed.nodes}
    draws = [name for name in documents if name.startswith("rand_like")]
    assert draws[0] in documents[draws[1]].deps


def _without_wait(shard: torch.Tensor, group: str) -> Any:
    OPS.all_gather_into_tensor(shard, RANKS, group)
    return shard + 1


def _read_at_once(shard: torch.Tensor, group: str) -> Any:
    return OPS.all_gather_into_tensor(shard, RANKS, group) + 1


def _coalesced(shard: torch.Tensor, group: str) -> Any:
    return OPS.wait_tensor(OPS.all_reduce_coalesced([shard], "sum", group)[0])


def _written_early(shard: torch.Tensor, group: str) -> Any:
    sent = OPS.all_gather_into_tensor(shard, RANKS, group)
    shard.copy_(shard + 1)
    return OPS.wait_tensor(sent)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_without_wait, 'collective "all_gather_into_tensor" has no wait: nothing says when its output'),
        (_read_at_once, 'node "add" reads collective "all_gather_into_tensor" without a wait'),
        (_coalesced, 'node "all_reduce_coalesced" is _c10d_functional.all_reduce_coalesced.default, which'),
        (_written_early, 'node "copy_" writes what collective "all_gather_into_tensor" still reads'),
    ],
)
def test_graphs_that_cannot_be_planned_are_refused(group: str, function: Any, message: str) -> None:
    """In one line that names the node."""
    module = traced(lambda shard: function(shard, group), torch.randn(2, WIDTH))
    with pytest.raises(InvalidGraph) as refused:
        read_fx(module.graph, "graph")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
