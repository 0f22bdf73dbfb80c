"""Settings of FSDP2, chosen in the simulation for passes small enough to work out by hand."""

import json

import pytest

from pace.documents.graph.fsdp2_settings import Fsdp2Settings, parse_fsdp2_settings
from pace.errors import InvalidOptions, InvalidSchedule
from pace.simulation.graph.framework_parameters import code_to_paste, deepspeed_config, megatron_arguments
from pace.simulation.graph.fsdp2_planner import plan_fsdp2
from pace.simulation.graph.policies import Fsdp2
from pace.simulation.graph.run import run_graph_policy
from tests.sharded_graphs import FULL, backward, collective, forward, graph_of, wait

GRAPH = graph_of(forward(4))


def test_what_hides_already_gets_no_more_memory() -> None:
    """Gathers of 0.625 s hide behind 2 s of compute one unit ahead; more would only cost memory."""
    settings = plan_fsdp2([GRAPH], unit_collectives=1)
    assert (settings.blocks_per_unit, settings.forward_ahead) == (1, 1)
    assert settings.forward_s == 0.625 + 4 * 2
    assert settings.backward_s is None


def test_exposed_reduce_scatters_get_buffers() -> None:
    """With one buffer, compute waits for the first reduce-scatter, of 5 s, before it issues the second."""
    nodes = backward(6)
    place = next(at for at, node in enumerate(nodes) if node.name == "scatter 0")
    call = nodes[place].collective
    assert call is not None
    longest = call.model_copy(update={"input_bytes": 10 * FULL})
    nodes[place] = nodes[place].model_copy(update={"collective": longest})
    graph = graph_of(nodes, latency_s=0.0)
    settings = plan_fsdp2([graph], unit_collectives=1)
    assert settings.max_input_buffers > 1
    stalled = run_graph_policy(graph, Fsdp2(unit_collectives=1)).iteration_s
    assert settings.backward_s is not None
    assert settings.backward_s < stalled


def test_latency_makes_larger_units() -> None:
    """Where each call costs 4 s, four gathers in one call are faster."""
    slow = graph_of(forward(8, compute_s=1.0), latency_s=4.0, seconds_per_byte=0.0)
    assert plan_fsdp2([slow], unit_collectives=1).blocks_per_unit == 4


def test_both_passes_get_one_size_of_units() -> None:
    """A forward and a backward pass are planned together; two of a kind are refused."""
    settings = plan_fsdp2([graph_of(backward(4)), GRAPH], unit_collectives=1)
    assert settings.forward_s is not None
    assert settings.backward_s is not None
    with pytest.raises(InvalidOptions, match="both reduce no gradients"):
        plan_fsdp2([GRAPH, GRAPH], unit_collectives=1)
    with pytest.raises(InvalidOptions, match="gathers no parameters"):
        plan_fsdp2([graph_of([collective("sum", "all-reduce"), wait("sum")])])


def test_memory_is_kept_or_refused() -> None:
    """With room for two units no more is gathered; a budget below two is refused with the least number."""
    slow = graph_of(forward(8, compute_s=0.25), latency_s=2.0, seconds_per_byte=0.0)
    free = plan_fsdp2([slow], unit_collectives=1)
    assert free.peak_bytes is not None
    bounded = plan_fsdp2([slow], free.peak_bytes - FULL, unit_collectives=1)
    assert bounded.peak_bytes is not None
    assert bounded.peak_bytes <= free.peak_bytes - FULL
    with pytest.raises(InvalidOptions, match="too small for FSDP2: the least settings need"):
        plan_fsdp2([slow], 1, unit_collectives=1)


def test_settings_come_back_from_json() -> None:
    """What is written is read; fields out of range are refused."""
    settings = plan_fsdp2([GRAPH], unit_collectives=1)
    assert parse_fsdp2_settings(settings.to_json()) == settings
    with pytest.raises(InvalidSchedule, match="blocks_per_unit"):
        Fsdp2Settings(blocks_per_unit=0)


def test_other_frameworks_get_the_same_sizes() -> None:
    """A parameter has 64 elements; two units of two parameters are 256."""
    settings = Fsdp2Settings(blocks_per_unit=2, forward_ahead=2)
    config = json.loads(deepspeed_config(GRAPH, settings))["zero_optimization"]
    assert config["stage3_prefetch_bucket_size"] == 2 * 2 * 64
    assert config["stage3_max_live_parameters"] == 3 * 2 * 64
    assert megatron_arguments(GRAPH, settings).endswith("--suggested-communication-unit-size 256")
    config = json.loads(deepspeed_config(graph_of(backward(4)), Fsdp2Settings()))["zero_optimization"]
    assert config["reduce_bucket_size"] == 64


def test_code_to_paste_is_python() -> None:
    """Only what differs from torch's defaults is set beyond units and prefetch."""
    compile(code_to_paste(Fsdp2Settings()), "code", "exec")
    assert "max_input_buffers" not in code_to_paste(Fsdp2Settings())
    code = code_to_paste(Fsdp2Settings(max_input_buffers=2, separate_reduce_scatter_group=True))
    assert "set_reduce_scatter_max_input_buffers(2)" in code
    assert "set_separate_reduce_scatter_group()" in code
