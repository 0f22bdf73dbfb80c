"""Which ops are measured, and that measuring leaves no trace in the job."""

import torch

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
