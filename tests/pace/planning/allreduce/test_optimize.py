"""What must hold of every answer: monotone, scale-free, the same whatever the order of the input."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Gradient, Options, Profile, Schedule, load_profile, optimize
from pace.documents.collective_costs import (
    AffineAllReduce,
    HalvingDoublingAllReduce,
    RingAllReduce,
    TreeAllReduce,
)
from pace.documents.profile import ELEMENT_BYTES
from pace.kinds import check
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import fuse
from pace.solver import one_machine
from tests.strategies import affine, eighths, layered_profiles, options, profiles, properties

FOUR_LAYERS = Path(__file__).parents[4] / "examples/concepts/four-layers.json"
EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "profiles").glob("*.json"))

AFFINE = st.builds(affine, eighths(1), st.sampled_from([0.0, 0.0625, 0.25]))


def scaled(profile: Profile, factor: float) -> Profile:
    """Return the profile with all times multiplied by `factor`; its all-reduce must be affine."""
    cost = profile.allreduce
    assert isinstance(cost, AffineAllReduce)
    return profile.replace(
        ops=tuple(op.model_copy(update={"duration_s": op.duration_s * factor}) for op in profile.ops),
        allreduce=affine(cost.latency_s * factor, cost.seconds_per_byte * factor),
    )


def optimum(profile: Profile) -> float:
    """Return the window of the groups that are best under free preemption.

    A schedule's own ideal_iteration_s may be longer: its groups are those whose segments do best once each
    pays its latency.
    """
    problem = FusionProblem.of(profile)
    buffers = problem.buffers(fuse(problem, Options()).partitions[0])
    return max(one_machine.solve(buffers.instance(problem.cost)).objective, problem.compute_s)


def predicted(schedule: Schedule) -> tuple[float, ...]:
    """Return the predicted times, without the gap."""
    p = schedule.predicted
    return (p.iteration_s, p.ideal_iteration_s, p.compute_s, p.lower_bound_s)


def untimed(schedule: Schedule) -> Schedule:
    """Return the schedule without the seconds that linear programs took."""
    solver = schedule.solver.model_copy(update={"programs_s": None})
    return schedule.model_copy(update={"solver": solver})


@given(profiles(cost=AFFINE), st.sampled_from([0.25, 1024.0]), st.sampled_from(["optimal", "paper", "none"]))
@properties(40)
def test_scaling_all_times_by_a_power_of_two_scales_every_time_exactly(
    profile: Profile, factor: float, fusion: str
) -> None:
    """No constant of the solver is in seconds: groups, segments and priorities stay, times scale."""
    chosen = Options.model_validate({"fusion": fusion, "search_calls": 200})
    one, other = optimize(profile, chosen), optimize(scaled(profile, factor), chosen)
    assert [t * factor for t in predicted(one)] == list(predicted(other))
    assert [g.tensors for g in one.groups] == [g.tensors for g in other.groups]
    assert [
        (s.group, s.offset_bytes, s.size_bytes, s.priority, s.start_s * factor) for s in one.transfers
    ] == [(s.group, s.offset_bytes, s.size_bytes, s.priority, s.start_s) for s in other.transfers]


def test_a_transfer_need_not_wait_for_a_slot() -> None:
    """Slots order transfers: of four layers, slot 9 starts at 83 ms, when the transfer of slot 8 ends."""
    options = Options(fusion="none", oracle="lp", slot_s=0.01)
    sent = {t.start_slot: t for t in optimize(load_profile(FOUR_LAYERS), options).transfers}
    assert (sent[8].start_s, sent[8].end_s, sent[9].start_s) == (0.08, 0.083, 0.083)
    assert all(transfer.start_s <= (slot or 0) * 0.01 + 1e-12 for slot, transfer in sent.items())


@given(profiles(cost=AFFINE), st.sampled_from([0.25, 1024.0]))
@properties(40)
def test_scaling_slots_too_scales_the_slotted_answer(profile: Profile, factor: float) -> None:
    """The same slots of another length."""
    one = optimize(profile, Options(slot_s=0.5, search_calls=100))
    other = optimize(scaled(profile, factor), Options(slot_s=0.5 * factor, search_calls=100))
    assert [t * factor for t in predicted(one)] == list(predicted(other))
    assert [s.start_slot for s in one.transfers] == [s.start_slot for s in other.transfers]


@given(layered_profiles(cost=AFFINE), st.sampled_from([1e-6, 0.3, 7.0, 1e5]))
@properties(40)
def test_scaling_by_any_factor_scales_optimum_and_bound_of_layered_models(
    profile: Profile, factor: float
) -> None:
    """Up to rounding; which of two equally good plans is taken may depend on it."""
    other = scaled(profile, factor)
    assert optimum(other) == pytest.approx(optimum(profile) * factor, rel=1e-9)
    before, after = optimize(profile).predicted.lower_bound_s, optimize(other).predicted.lower_bound_s
    assert after == pytest.approx(before * factor, rel=1e-9)


def with_gradient(profile: Profile, size: int, producer: int, consumer: int | None) -> Profile:
    """Return the profile with one more gradient of `size` bytes, and perhaps an op that waits for it."""
    ops = list(profile.ops)
    if consumer is not None:
        op = ops[consumer]
        ops[consumer] = op.model_copy(update={"waits_for": (*op.waits_for, "one more")})
    extra = Gradient(name="one more", size_bytes=size, dtype="int8", producer=ops[producer].name)
    return profile.replace(ops=tuple(ops), gradients=(*profile.gradients, extra))


@given(profiles(cost=AFFINE), st.sampled_from([0, 1, 24, 200]), st.data())
@properties(50)
def test_one_more_gradient_never_lowers_the_bound(profile: Profile, size: int, data: st.DataObject) -> None:
    """Any profile, affine cost: lower_bound_s is a maximum over sets and chains that only grow."""
    backward = [at for at, op in enumerate(profile.ops) if op.name.startswith("bwd/")]
    forward = [at for at, op in enumerate(profile.ops) if op.name.startswith("fwd/")]
    consumer = data.draw(st.sampled_from([None, *forward]))
    larger = with_gradient(profile, size, data.draw(st.sampled_from(backward)), consumer)
    before = optimize(profile, Options(search_calls=1)).predicted.lower_bound_s
    assert optimize(larger, Options(search_calls=1)).predicted.lower_bound_s >= before * (1 - 1e-12)


@given(layered_profiles(max_layers=5, cost=AFFINE), st.sampled_from([0, 1, 24, 200]), st.data())
@properties(50)
def test_one_more_gradient_of_a_layer_never_lowers_the_optimum(
    profile: Profile, size: int, data: st.DataObject
) -> None:
    """Layered and affine, where the best over all fusions is found: a plan without it is no slower."""
    n = len(profile.gradients)
    if n == 0:
        return
    layer = data.draw(st.integers(0, n - 1))
    larger = with_gradient(profile, size, layer, 2 * n - 1 - layer)
    assert optimum(larger) >= optimum(profile) * (1 - 1e-12)


@pytest.mark.parametrize("kind", [RingAllReduce, HalvingDoublingAllReduce, TreeAllReduce])
@given(profile=layered_profiles(max_layers=6), latency=eighths(1), factor=st.sampled_from([1.01, 2.0, 100.0]))
@properties(40)
def test_more_bandwidth_never_raises_the_optimum_of_layered_models(
    kind: type[RingAllReduce], profile: Profile, latency: float, factor: float
) -> None:
    """Every plan is as fast or faster on a faster network, so the best is."""
    slow = kind(bandwidth_bytes_per_s=16.0, latency_s=latency)
    fast = kind(bandwidth_bytes_per_s=16.0 * factor, latency_s=latency)
    before, after = (profile.replace(allreduce=cost) for cost in (slow, fast))
    assert optimum(after) <= optimum(before) * (1 + 1e-12)
    bounds = (optimize(before).predicted.lower_bound_s, optimize(after).predicted.lower_bound_s)
    assert bounds[1] <= bounds[0] * (1 + 1e-12)


@given(profiles(), options(), st.randoms(use_true_random=False))
@properties(50)
def test_the_order_of_gradients_changes_nothing_but_their_order(
    profile: Profile, chosen: Options, random: Random
) -> None:
    """All predicted times are equal to the last bit."""
    gradients = list(profile.gradients)
    random.shuffle(gradients)
    turned = profile.replace(gradients=tuple(gradients))
    one, other = untimed(optimize(profile, chosen)), untimed(optimize(turned, chosen))
    assert one.predicted == other.predicted
    assert one.fingerprint == other.fingerprint
    assert one.solver == other.solver
    assert [s.size_bytes for s in one.transfers] == [s.size_bytes for s in other.transfers]


@given(profiles(), st.randoms(use_true_random=False))
@properties(40)
def test_the_order_of_ops_without_a_stream_changes_nothing(profile: Profile, random: Random) -> None:
    """Nor do the names of anything."""
    loose = [op.model_copy(update={"stream": None}) for op in profile.ops]
    plain = profile.replace(ops=tuple(loose))
    random.shuffle(loose)
    assert optimize(plain).predicted == optimize(plain.replace(ops=tuple(loose))).predicted
    renamed = json.loads(plain.model_dump_json().replace('"bwd/', '"zzz/').replace('"g', '"h'))
    renamed["gradients"] = renamed.pop("hradients")
    assert optimize(Profile.model_validate(renamed)).predicted == optimize(plain).predicted


@given(profiles(), options())
@properties(40)
def test_the_same_input_gives_the_same_bytes(profile: Profile, chosen: Options) -> None:
    """Nothing is left over from the solution before; only the seconds of linear programs differ."""
    one, other = (untimed(optimize(profile, chosen)) for _ in range(2))
    assert one.to_json() == other.to_json()


@pytest.mark.slow
def test_another_process_gives_the_same_bytes() -> None:
    """Whatever seeds the hashes of strings."""
    program = (
        "import sys; from pace import *; "
        "sys.stdout.buffer.write(optimize(load_profile(sys.argv[1]), Options(fusion='optimal')).to_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLES[0])],
        env=os.environ | {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "77"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == optimize(load_profile(EXAMPLES[0])).to_json()


@given(profiles(), options())
@properties(50)
def test_times_are_in_order(profile: Profile, chosen: Options) -> None:
    """Compute <= bound <= iteration; bound <= ideal, and ideal <= iteration where g has one slope."""
    p = optimize(profile, chosen).predicted
    slack = 1e-9 * p.iteration_s
    assert p.compute_s <= p.lower_bound_s <= p.iteration_s + slack
    if chosen.framework is None:
        assert p.lower_bound_s <= p.ideal_iteration_s + slack
    if chosen.slot_s is None and profile.cost.line is not None:
        assert p.ideal_iteration_s <= p.iteration_s + slack


@given(profiles(), st.sampled_from([1, 2, 8, 1000]))
@properties(40)
def test_segments_are_no_larger_than_asked_for(profile: Profile, most: int) -> None:
    """But one element always goes."""
    schedule = optimize(profile, Options(max_segment_bytes=most, search_calls=50))
    for segment in schedule.transfers:
        assert segment.size_bytes <= max(most, ELEMENT_BYTES[schedule.groups[segment.group].dtype])


@given(profiles())
@properties(40)
def test_a_barrier_is_never_faster_than_its_bound_or_than_sending_nothing(profile: Profile) -> None:
    """DDP and Horovod: whole groups in order of ready time, one segment each, no earlier than any bound."""
    for target in ("ddp", "horovod"):
        schedule = optimize(profile, Options.model_validate({"framework": target}))
        sent = [group for group in schedule.groups if group.size_bytes]
        assert len(schedule.transfers) == len(sent)
        ready = [schedule.groups[segment.group].ready_s for segment in schedule.transfers]
        assert ready == sorted(ready)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("fusion", ["optimal", "paper", "none"])
def test_bundled_profiles(path: Path, fusion: str) -> None:
    """Accepted by the checker; where the search is exact, what it finds is at the bound."""
    profile = load_profile(path)
    schedule = optimize(profile, Options.model_validate({"fusion": fusion}))
    assert check(profile, schedule) == []
    if schedule.solver.method.endswith("exact"):
        assert optimum(profile) == pytest.approx(schedule.predicted.lower_bound_s, rel=1e-9)
