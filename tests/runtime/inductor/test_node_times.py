"""Which ops are measured, and that measuring leaves no trace in the job."""

import time

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import register_flop_formula

from pace.device_rates import DeviceRates
from pace.runtime.inductor import node_times
from pace.runtime.inductor.node_times import (
    ALONE,
    BESIDE_SHARE,
    LIKELY_SLOWDOWN,
    QUEUED,
    CollectiveTimer,
    NodeTimes,
    is_kernel_of_torch,
)
from tests.runtime.inductor.graphs import absent_ranks, traced

CPU = torch.device("cpu")


def _attention(query: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mixed = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    found: torch.Tensor = torch.linalg.inv(
        torch.nn.functional.gelu(mixed @ weight)[..., :8, :] + 9 * torch.eye(8)
    )
    return found


def test_kernels_of_torch_are_told_from_fused_ops() -> None:
    """Attention on a CPU and an inverse have kernels of their own, although torch has no formula for them."""
    module = traced(_attention, torch.ones(1, 2, 16, 8), torch.ones(8, 8))
    alone = {str(node.target).split(".")[1] for node in module.graph.nodes if is_kernel_of_torch(node)}
    assert {"_scaled_dot_product_flash_attention_for_cpu", "linalg_inv_ex"} <= alone
    assert alone & {"mm", "bmm"}
    assert "gelu" not in alone
    sums = traced(lambda values: values.cumsum(0), torch.ones(8)).graph.nodes
    assert not any(is_kernel_of_torch(node) for node in sums)


def test_measuring_draws_none_of_the_jobs_random_numbers() -> None:
    """Inputs are random, and so is dropout, but the job goes on as it would have."""
    module = traced(_attention, torch.ones(1, 2, 16, 8), torch.ones(8, 8))
    times = NodeTimes(CPU, None)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert sum(times.duration_s(node) for node in module.graph.nodes if node.op == "call_function") > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_custom_ops_run_only_where_the_job_runs_them() -> None:
    """They may count or draw numbers, unless a formula says that they compute. Any error may come of it."""
    calls: list[str] = []

    def counted(values: torch.Tensor) -> torch.Tensor:
        calls.append("counted")
        return values + len(calls)

    def asserting(values: torch.Tensor) -> torch.Tensor:
        calls.append("asserting")
        raise AssertionError(values)

    graph = torch.fx.Graph()
    values = graph.placeholder("values")
    with FakeTensorMode():
        values.meta["val"] = torch.empty(256)
    times = NodeTimes(CPU, None)
    for op in (counted, asserting):
        torch.library.custom_op(f"pace_tests::{op.__name__}", op, mutates_args=())
        packet = getattr(torch.ops.pace_tests, op.__name__)
        node = graph.call_function(packet.default, (values,))
        node.meta["val"] = values.meta["val"]
        if op is asserting:
            register_flop_formula(packet)(lambda *_args, **_kwargs: 256)
        assert times.duration_s(node) == pytest.approx(2 * 1024 / times.memory_bytes_per_s)
    assert calls == ["asserting"]


def test_given_rates_count_the_bytes_of_a_kernel_without_a_formula() -> None:
    """An inverse reads 1 kB, and writes that and a status of four bytes, at 1 GB/s."""
    module = traced(torch.linalg.inv, torch.ones(16, 16))
    rates = DeviceRates(tflops=1.0, memory_gbytes_per_s=1.0)
    seconds = [NodeTimes(CPU, rates).duration_s(node) for node in module.graph.nodes if "inv" in node.name]
    assert seconds == [(1024 + 1024 + 4) / 1e9]


def test_nodes_that_are_not_fused_are_measured_alone() -> None:
    """A node that reads and writes 8 MB costs nothing inside a fused region, but time by itself."""
    module = traced(lambda values: torch.relu(torch.sin(values) + 1), torch.ones(1 << 20))
    times = NodeTimes(CPU, None)
    (middle,) = (node for node in module.graph.nodes if "add" in node.name)
    assert times.duration_s(middle) == 0.0
    assert times.duration_s(middle, fused=False) > 0.0


def test_attention_that_cannot_run_by_itself_is_computed_from_measured_products() -> None:
    """FlexAttention takes the time of its operations, at the rate of the products measured before."""
    graph = torch.fx.Graph()
    rows, weight, query = (graph.placeholder(name) for name in ("rows", "weight", "query"))
    product = graph.call_function(torch.ops.aten.mm.default, (rows, weight))
    attention = graph.call_function(torch.ops.higher_order.flex_attention, (query, query, query))
    with FakeTensorMode():
        rows.meta["val"], weight.meta["val"] = torch.empty(2048, 16), torch.empty(16, 16)
        query.meta["val"] = torch.empty(1, 2, 1024, 16)
    product.meta["val"], attention.meta["val"] = rows.meta["val"], query.meta["val"]
    given = NodeTimes(CPU, DeviceRates(tflops=1e-3, memory_gbytes_per_s=1e6))
    assert given.duration_s(attention) == 2 * 2 * (2 * 1024 * 16 * 1024) / 1e9
    measured = NodeTimes(CPU, None)
    product_s = measured.duration_s(product)
    # Two products of 1,024 x 16 x 1,024 for each of two heads, against one of 2,048 x 16 x 16.
    assert measured.duration_s(attention) == pytest.approx(128 * product_s)


@pytest.mark.parametrize("interrupted", [None, 1, 3, 4, 7, 8, 9, 12, 15])
@pytest.mark.parametrize(("product_s", "slowdown"), [(1e-3, 1.0), (1e-3, 3.0), (0.1, 1.0)])
def test_one_interruption_does_not_change_the_cost_of_collectives(
    interrupted: int | None, product_s: float, slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute beside them never takes longer than they do, so a gather of 0.03 s costs as much."""
    now_s, calls = 0.0, 0

    def start() -> torch.Tensor:
        nonlocal now_s, calls
        calls += 1
        now_s += 0.03 + (calls == interrupted)
        return torch.ones(1)

    def products(_timer: CollectiveTimer, _matrix: torch.Tensor, count: int) -> tuple[int, int]:
        nonlocal now_s
        before_s = now_s
        now_s += product_s * count * (slowdown if calls else 1.0)
        return round(before_s * 1e9), round(now_s * 1e9)

    monkeypatch.setattr(node_times, "_starter", lambda *_: start)
    monkeypatch.setattr(CollectiveTimer, "_products", products)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(now_s * 1e9))
    with absent_ranks():
        assert dist.group.WORLD is not None
        timer = CollectiveTimer(CPU)
        found_s = timer._seconds("all-gather", 1 << 20, dist.group.WORLD)
    # Here, compute follows the collectives instead of running beside them: so many products.
    beside = int(BESIDE_SHARE * 0.03 / product_s / LIKELY_SLOWDOWN)
    assert found_s == pytest.approx(0.03 + beside * product_s * slowdown)
    # As many on every rank, however fast each computes: others would wait for ever.
    assert calls == QUEUED * (ALONE + 2) + QUEUED * (8 + 2)
    assert timer.compute_slowdown == pytest.approx(slowdown if beside else 1.0)
