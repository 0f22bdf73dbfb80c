"""Which ops are measured, and that measuring leaves no trace in the job."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pace.device_rates import DeviceRates
from pace.runtime.inductor.node_times import NodeTimes, is_kernel_of_torch
from tests.runtime.inductor.graphs import traced

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
