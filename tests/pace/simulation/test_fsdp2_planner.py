"""Settings of FSDP2, chosen in the simulation for passes small enough to work out by hand."""

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pace.documents.graph.fsdp2_settings import Fsdp2Settings, parse_fsdp2_settings
from pace.errors import InvalidOptions, InvalidSchedule
from pace.planning.graph.arrays import program_of
from pace.simulation.graph.framework_parameters import code_to_paste, deepspeed_config, megatron_arguments
from pace.simulation.graph.fsdp2_planner import (
    AHEAD,
    BACKWARD_VALUES,
    BLOCKS_PER_UNIT,
    WORTH,
    Fsdp2Passes,
    PassRun,
    plan_fsdp2,
)
from pace.simulation.graph.policies import Fsdp2
from pace.simulation.graph.run import run_graph_policy
from tests.sharded_graphs import FULL, backward, collective, forward, graph_of, held_up, wait

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


def test_held_up_gathers_get_a_wire_shared_by_two_groups() -> None:
    """By hand: layers compute from 0.125 s to 16.125 s without a gap, and the last reduce-scatter follows.

    In one group, gathers that are issued after 2.125 s would wait for the first reduce-scatter, until
    14.125 s. In two, each gather takes 0.25 s beside it.
    """
    graph = held_up()
    settings = plan_fsdp2([graph], unit_collectives=1)
    assert settings.separate_reduce_scatter_group
    assert (settings.backward_ahead, settings.max_input_buffers) == (1, 1)
    assert settings.backward_s == 16.625
    assert settings.lower_bound_s is not None
    assert settings.lower_bound_s <= 16.625
    one_group = run_graph_policy(graph, Fsdp2(unit_collectives=1, ahead=3, max_input_buffers=3))
    assert one_group.iteration_s == 14.25 + 4 * 2 + 0.5
    two_groups = Fsdp2(unit_collectives=1, separate_reduce_scatter_group=True)
    assert run_graph_policy(graph, two_groups).iteration_s == 16.625
    assert "set_separate_reduce_scatter_group()" in code_to_paste(settings)


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
    with pytest.raises(InvalidOptions, match="no settings of FSDP2 were found within a memory budget of"):
        plan_fsdp2([slow], 1, unit_collectives=1)


def test_units_stay_gathered_where_memory_allows() -> None:
    """By hand: without its first gather of 0.625 s, the backward pass takes 5 s.

    The unit takes no more memory than its gather would at the start of the backward pass. A second one would
    save nothing, as its gather hides behind compute. In the forward pass both are held beside two outputs.
    """
    passes = [graph_of(forward(2)), graph_of(backward(2))]
    freed = plan_fsdp2(passes, unit_collectives=1)
    assert (freed.forward_s, freed.backward_s, freed.kept_units) == (4.625, 5.625, ())
    settings = plan_fsdp2(passes, 10**6, unit_collectives=1)
    assert (settings.blocks_per_unit, settings.kept_units, settings.reshard_after_forward) == (1, (1,), True)
    assert (settings.forward_s, settings.backward_s, settings.lower_bound_s) == (4.625, 5.0, 9.625)
    assert freed.peak_bytes is not None
    assert plan_fsdp2(passes, freed.peak_bytes, unit_collectives=1).kept_units == (1,)
    one, other = map(program_of, passes)
    both = Fsdp2Passes(one, other, None, unit_collectives=1).choose(frozenset({0, 1}))
    assert both.forward is not None
    assert both.forward.peak_bytes == 2 * FULL + 2 * 16


def test_all_units_stay_gathered_where_each_saves_time() -> None:
    """Gathers take longer than compute: FSDP2 needs no numbers to keep all units."""
    passes = [graph_of(nodes, latency_s=0.0, seconds_per_byte=0.05) for nodes in (forward(3), backward(3))]
    settings = plan_fsdp2(passes, 10**6, unit_collectives=1)
    assert (settings.reshard_after_forward, settings.kept_units) == (False, ())


def fitting(runs: list[PassRun | None], memory: int) -> list[float]:
    """Return the times of those that stay within the memory."""
    return [each.end_s for each in runs if each is not None and each.peak_bytes <= memory]


@given(
    layers=st.integers(2, 3),
    latency_s=st.sampled_from((0.0, 0.25, 2.0)),
    seconds_per_byte=st.sampled_from((1 / 256, 1 / 64, 1 / 16)),
    more_bytes=st.integers(-FULL, 4 * FULL),
)
@examples(max_examples=5, deadline=None)
def test_no_choice_of_units_is_better(
    layers: int, latency_s: float, seconds_per_byte: float, more_bytes: int
) -> None:
    """Every choice of kept units and values is simulated; none beats the settings or the bound."""
    passes = [
        graph_of(nodes, latency_s=latency_s, seconds_per_byte=seconds_per_byte)
        for nodes in (forward(layers), backward(layers))
    ]
    memory = (plan_fsdp2(passes, unit_collectives=1).peak_bytes or 0) + more_bytes
    first, second = map(program_of, passes)
    totals = [
        min(forwards) + min(backwards)
        for blocks in BLOCKS_PER_UNIT
        for each in [Fsdp2Passes(first, second, memory, unit_collectives=1, blocks_per_unit=blocks)]
        for size in range(each.num_units + 1)
        for kept in map(frozenset, combinations(range(each.num_units), size))
        if (
            forwards := fitting(
                [each.choose(kept, forward=[ahead], backward=[(1, 1, False)]).forward for ahead in AHEAD],
                memory,
            )
        )
        and (
            backwards := fitting(
                [each.choose(kept, forward=[1], backward=[values]).backward for values in BACKWARD_VALUES],
                memory,
            )
        )
    ]
    if not totals:
        with pytest.raises(InvalidOptions, match="no settings of FSDP2 were found"):
            plan_fsdp2(passes, memory, unit_collectives=1)
        return
    planned = plan_fsdp2(passes, memory, unit_collectives=1)
    assert planned.forward_s is not None
    assert planned.backward_s is not None
    assert planned.lower_bound_s is not None
    assert planned.peak_bytes is not None
    assert planned.peak_bytes <= memory
    assert planned.forward_s + planned.backward_s <= min(totals) * (1 + WORTH) ** 3
    assert planned.lower_bound_s <= min(totals) * (1 + 1e-9)


def test_many_units_are_searched() -> None:
    """With 12 units not all choices are simulated; what fits is kept, within the memory and the bound."""
    passes = [graph_of(nodes, latency_s=0.0, seconds_per_byte=0.02) for nodes in (forward(12), backward(12))]
    freed = plan_fsdp2(passes, unit_collectives=1)
    assert freed.peak_bytes is not None
    assert freed.backward_s is not None
    memory = freed.peak_bytes + 5 * FULL
    planned = plan_fsdp2(passes, memory, unit_collectives=1)
    assert planned.peak_bytes is not None
    assert planned.backward_s is not None
    assert planned.lower_bound_s is not None
    assert planned.kept_units
    assert planned.peak_bytes <= memory
    assert planned.backward_s < freed.backward_s
    assert planned.lower_bound_s <= (planned.forward_s or 0.0) + planned.backward_s


def test_settings_come_back_from_json() -> None:
    """What is written is read; fields out of range are refused."""
    settings = plan_fsdp2([GRAPH], unit_collectives=1)
    assert parse_fsdp2_settings(settings.to_json()) == settings
    with pytest.raises(InvalidSchedule, match="blocks_per_unit"):
        Fsdp2Settings(blocks_per_unit=0)
    kept = Fsdp2Settings(kept_units=(0, 2))
    assert parse_fsdp2_settings(kept.to_json()) == kept
    assert b"kept_units" not in settings.to_json()
    with pytest.raises(InvalidSchedule, match="not in order"):
        Fsdp2Settings(kept_units=(2, 0))
    with pytest.raises(InvalidSchedule, match="all units are kept"):
        Fsdp2Settings(kept_units=(2,), reshard_after_forward=False)


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
    kept = code_to_paste(Fsdp2Settings(kept_units=(1, 3), backward_ahead=2))
    compile(kept, "code", "exec")
    assert "reshard_after_forward=number not in {1, 3}" in kept
    code = code_to_paste(Fsdp2Settings(max_input_buffers=2, separate_reduce_scatter_group=True))
    assert "set_reduce_scatter_max_input_buffers(2)" in code
    assert "set_separate_reduce_scatter_group()" in code
