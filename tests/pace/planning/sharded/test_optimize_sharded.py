"""Schedules in two halves: by hand, judged by the checker, and against every pair of partitions."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Options, Profile
from pace.documents.collective_costs import AffineHalf, HalfCost, RingAllReduce, SampledAllReduce, SampledHalf
from pace.documents.load import NO_LOAD, Load
from pace.documents.profile import DType, UpdateRule
from pace.documents.push_pull import PushPull
from pace.documents.schedule import parse_schedule
from pace.errors import InvalidOptions, InvalidSchedule
from pace.kinds import check, optimize
from pace.models import build
from pace.planning.sharded.bounds import norm_bound, set_bound
from pace.planning.sharded.optimize import optimize_sharded
from pace.planning.sharded.problem import ShardingProblem
from pace.simulation import run_policy
from pace.simulation.registry import make_policy
from pace.solver import one_machine
from pace.solver.two_halves.chains import chained_instance
from tests.pace.checker.corruptions import Change, add, put, without
from tests.solver.two_halves.given_calls import end_of_reduce_scatters, longest_after_norm
from tests.strategies import (
    affine,
    eighths,
    layered,
    layered_profiles,
    profiles,
    properties,
    samples,
    set_partitions,
)


def half_costs() -> st.SearchStrategy[HalfCost | None]:
    """Draw a measured half, or none."""
    line = st.builds(AffineHalf, latency_s=eighths(1), seconds_per_byte=st.sampled_from([0.0, 0.0625, 0.25]))
    measured = samples().map(lambda drawn: SampledHalf(samples=drawn.samples))
    return st.one_of(st.none(), st.none(), line, measured)


@st.composite
def sharded_profiles(draw: st.DrawFn) -> Profile:
    """Draw any profile with either update rule, with or without measured halves."""
    profile = draw(st.one_of(profiles(), layered_profiles()))
    return profile.replace(
        update=draw(st.sampled_from(["per-gradient", "global-norm"])),
        reduce_scatter=draw(half_costs()),
        all_gather=draw(half_costs()),
    )


sharded_options = st.builds(
    Options,
    exchange=st.just("sharded"),
    fusion=st.sampled_from(["optimal", "optimal", "none"]),
    max_group_bytes=st.sampled_from([None, None, 1, 16]),
    max_segment_bytes=st.sampled_from([None, None, 1, 8]),
    search_calls=st.just(100),
)

# Backward 1 s a layer, forward 1 s a layer; g2 of 2 bytes is ready at 1, g1 of 4 bytes at 2. Two workers, so
# that a ring's half is x / 2 seconds: RS2 1-2, RS1 2-4; AG1 before AG2.
TWO_LAYERS = layered([2, 4], allreduce=RingAllReduce(bandwidth_bytes_per_s=1, latency_s=0), workers=2)


def test_two_layers_with_a_norm_by_hand() -> None:
    """Norm of 8 bytes: 8 s, from 4 to 12. AG1 12-14 with tail 2, AG2 14-15 with tail 1: 16 s."""
    made = optimize_sharded(TWO_LAYERS.replace(update="global-norm"))
    assert made.predicted.iteration_s == made.predicted.lower_bound_s == 16
    norm = made.shard_layout.norm
    assert norm is not None
    assert (norm.start_s, norm.end_s) == (4, 12)
    assert [(s.op, s.start_s, s.end_s) for s in made.transfers] == [
        ("reduce-scatter", 1, 2),
        ("reduce-scatter", 2, 4),
        ("all-gather", 12, 14),
        ("all-gather", 14, 15),
    ]


def test_two_layers_without_a_norm_by_hand() -> None:
    """RS2 1-2, RS1 2-4, AG1 4-6 with tail 2, AG2 6-7 with tail 1: 8 s; no cut gains anything."""
    made = optimize_sharded(TWO_LAYERS, Options(exchange="sharded"))
    assert made.predicted.iteration_s == made.predicted.ideal_iteration_s == 8
    assert made.shard_layout.norm is None
    # RS1, AG1 and what follows: 2 + 2 + 2 + 2.
    assert made.proofs[0].bound_s == 8
    assert made.predicted.lower_bound_s == 8


def test_shards_that_both_halves_share() -> None:
    """Three gradients, the chains cut differently: shards are the common parts, padded to rows."""
    profile = layered(
        [3, 3, 3],
        allreduce=affine(0.0, 0.0),
        backward_s=[0, 0, 0],
        forward_s=[1, 0, 0],
        workers=2,
    ).replace(
        update="global-norm",
        reduce_scatter=AffineHalf(latency_s=1, seconds_per_byte=0),
        all_gather=AffineHalf(latency_s=0, seconds_per_byte=0.125),
    )
    made = optimize_sharded(profile)
    assert len(made.groups_of("reduce-scatter")) == 1
    assert len(made.groups_of("all-gather")) > 1
    shards = made.shard_layout.shards
    assert sorted(name for shard in shards for name in shard.tensors) == ["g1", "g2", "g3"]
    assert {shard.num_columns for shard in shards} <= {2, 3, 5}
    assert check(profile, made) == []


@given(sharded_profiles(), sharded_options)
@properties(40)
def test_every_sharded_schedule_is_accepted(profile: Profile, chosen: Options) -> None:
    """Any profile, any options: nothing to object to, no faster than its bounds, and read back as it was."""
    made = optimize_sharded(profile, chosen)
    assert check(profile, made) == []
    slack = 1e-9 * made.predicted.iteration_s
    assert made.predicted.iteration_s >= made.predicted.ideal_iteration_s - slack
    assert made.predicted.iteration_s >= made.predicted.lower_bound_s - slack
    assert parse_schedule(made.to_json()) == made


@given(layered_profiles(max_layers=5, cost=st.builds(affine, eighths(1), st.sampled_from([0.0, 0.25]))))
@properties(40)
def test_with_a_norm_and_without_padding_the_plan_attains_the_bound(profile: Profile) -> None:
    """One byte an element and rows without padding: exact programs and the bound against every plan agree."""
    gradients = tuple(
        gradient.model_copy(update={"size_bytes": gradient.size_bytes * profile.workers})
        for gradient in profile.gradients
    )
    made = optimize_sharded(profile.replace(update="global-norm", gradients=gradients))
    assert made.predicted.iteration_s == pytest.approx(made.predicted.lower_bound_s)


@given(layered_profiles(max_layers=4, min_elements=1), st.booleans())
@properties(30)
def test_no_pair_of_partitions_beats_the_bounds(profile: Profile, norm: bool) -> None:
    """Every partition of both halves, with free preemption and no padding, is no faster than the bound."""
    if not profile.gradients:
        return
    rule = profile.replace(update="global-norm" if norm else "per-gradient")
    problem = ShardingProblem.of(rule)
    partitions = [
        tuple(tuple(group) for group in partition)
        for partition in set_partitions(range(len(profile.gradients)))
    ]
    least = np.inf
    for first in partitions:
        for second in partitions:
            scattered, gathered = problem.scattered(first), problem.gathered(second)
            if problem.norm_s is not None:
                end = end_of_reduce_scatters(scattered, problem.reduce_scatter)
                window = end + problem.norm_s + longest_after_norm(gathered, problem.all_gather)
            else:
                window = one_machine.solve(
                    chained_instance(
                        scattered,
                        gathered,
                        reduce_scatter=problem.reduce_scatter,
                        all_gather=problem.all_gather,
                    )
                ).objective
            least = min(least, window)
    bound = norm_bound(problem).bound_s if norm else set_bound(problem).bound_s
    assert bound <= least * (1 + 1e-9)
    made = optimize_sharded(rule, Options(exchange="sharded")).predicted
    assert made.iteration_s >= min(least, made.iteration_s) * (1 - 1e-9)
    assert made.lower_bound_s <= max(least, made.compute_s) * (1 + 1e-9)


def test_the_windows_of_the_literature_models() -> None:
    """Eight workers, a ring without latency at 10 Gb/s, in ms: unclipped; whole all-reduces; two halves."""
    expected = {"vgg16": (64, 815, 1052, 926), "resnet50": (32, 159, 203, 171)}
    expected["transformer"] = (8192, 636, 770, 655)
    for name, (batch, unclipped, whole, halves) in expected.items():
        ring = RingAllReduce(bandwidth_bytes_per_s=1.25e9, latency_s=0.0)
        built = build(name, device_tflops=8.0, batch=batch, workers=8, allreduce=ring)
        profile = built.replace(load=NO_LOAD)
        clipped = profile.replace(update="global-norm")
        windows = (
            optimize(profile),
            optimize(clipped, Options(exchange="allreduce")),
            optimize(clipped),
        )
        milliseconds = [made.predicted.iteration_s * 1e3 for made in windows]
        assert milliseconds == pytest.approx([unclipped, whole, halves], abs=0.6)
        assert windows[2].predicted.gap < 2e-3


def test_measured_costs_need_few_calls() -> None:
    """Short messages and noisy samples: what fits behind compute is not sent gradient by gradient."""
    sizes = np.geomspace(1e3, 2e8, 12)
    noise = 1 + 0.05 * np.sin(np.arange(12))
    samples = tuple(zip(sizes.tolist(), (noise * (2e-5 + sizes / 5e9)).tolist(), strict=True))
    built = build(
        "resnet50", device_tflops=8.0, batch=32, workers=8, allreduce=SampledAllReduce(samples=samples)
    )
    profile = built.replace(update="global-norm")
    for load in (NO_LOAD, Load(delta=((1, 1e-3),), sigma={})):
        made = optimize(profile.replace(load=load))
        assert made.exchange == "sharded"
        assert len(made.transfers) <= 16
        assert made.predicted.gap < (0.004 if load == NO_LOAD else 0.03)


def test_what_is_asked_for_decides_the_exchange() -> None:
    """By default sharded behind a norm only; what is asked for in any case."""
    clipped = TWO_LAYERS.replace(update="global-norm")
    assert optimize(TWO_LAYERS).exchange == "allreduce"
    assert optimize(clipped).exchange == "sharded"
    assert optimize(clipped, Options(exchange="allreduce")).exchange == "allreduce"
    assert optimize(clipped, Options(framework="ddp")).exchange == "allreduce"
    assert optimize(TWO_LAYERS, Options(exchange="sharded")).exchange == "sharded"
    assert optimize(TWO_LAYERS, Options(exchange="allreduce")) == optimize(TWO_LAYERS)


@pytest.mark.parametrize(
    "given",
    [
        Options(exchange="sharded", fusion="paper"),
        Options(exchange="sharded", slot_s=1.0),
        Options(exchange="sharded", oracle="lp", slot_s=1.0),
        Options(framework="ddp"),
        Options(exchange="sharded", max_segment_bytes=1),
    ],
)
def test_options_that_do_not_fit_are_refused(given: Options) -> None:
    """The message says what would fit."""
    large = layered([3_000_000], allreduce=affine(0.0, 1e-9))
    with pytest.raises(InvalidOptions):
        optimize_sharded(large, given)


def test_parameter_servers_have_no_halves() -> None:
    """Push and pull is refused by name."""
    profile = layered([1], allreduce=PushPull(servers=1, worker_bytes_per_s=1.0))
    with pytest.raises(InvalidOptions, match="parameter servers"):
        optimize_sharded(profile)


# Groups 0 and 1 are reduce-scatters, 2 and 3 all-gathers.
CORRUPTIONS: dict[str, Change] = {
    "a gather before the norm": add("transfers", 2, "start_s", amount=-3),
    "a reduce-scatter too early": add("transfers", 0, "start_s", amount=-1),
    "a segment too short": add("transfers", 3, "end_s", amount=-0.5),
    "priorities exchanged": put("transfers", 0, "priority", value=9),
    "a column sent twice": put("transfers", 1, "offset_bytes", value=2),
    "a column never sent": add("transfers", 3, "size_bytes", amount=-2),
    "a column cut": add("transfers", 3, "size_bytes", amount=-1),
    "a segment missing": without("transfers", 3),
    "a gather called a sum": put("transfers", 3, "op", value="reduce-scatter"),
    "a segment on no link": put("transfers", 3, "link", value=1),
    "a shard in no group": put("groups", 3, "shards", value=[1]),
    "a shard that is too small": add("sharding", "shards", 0, "num_columns", amount=-1),
    "a gradient twice": put("sharding", "shards", 1, "tensors", value=["g2"]),
    "an unknown gradient": put("sharding", "shards", 0, "tensors", value=["g9"]),
    "tensors of other shards": put("groups", 0, "tensors", value=["g1", "g2"]),
    "another dtype": put("sharding", "shards", 0, "dtype", value="uint8"),
    "another ready time": add("groups", 0, "ready_s", amount=1),
    "a tail of a sum": add("groups", 0, "tail_s", amount=1),
    "another tail": add("groups", 2, "tail_s", amount=-1),
    "a ready time of a gather": add("groups", 2, "ready_s", amount=1),
    "another duration": add("groups", 2, "transfer_s", amount=-1),
    "another size": add("groups", 0, "size_bytes", amount=2),
    "a short norm": add("sharding", "norm", "end_s", amount=-1),
    "an early norm": put("sharding", "norm", value={"start_s": 3, "end_s": 11}),
    "no norm": put("sharding", "norm", value=None),
    "another update rule": put("sharding", "update", value="per-gradient"),
    "other workers": put("sharding", "workers", value=1),
    "another profile": put("profile_sha256", value="0" * 64),
    "another model": put("fingerprint", value="0" * 64),
    "a window too short": add("predicted", "iteration_s", amount=-1),
    "an ideal too short": add("predicted", "ideal_iteration_s", amount=-1),
    "less compute": add("predicted", "compute_s", amount=-1),
    "a bound too high": add("predicted", "lower_bound_s", amount=1),
    "a gap too small": add("predicted", "gap", amount=-0.1),
    "a proof without gathers": put("proofs", 0, "set", value=[0, 1]),
    "a proof with unknown groups": put("proofs", 0, "set", value=[7]),
    "a proof of another sum": add("proofs", 0, "bound_s", amount=1),
    "a proof with more work": add("proofs", 0, "total_s", amount=1),
    "a proof with a longer norm": add("proofs", 0, "norm_s", amount=1),
    "a chain that says more": add("norm_bound", "reduce_scatter", "bound_s", amount=1),
    "gathers that say more": add("norm_bound", "all_gather", "bound_s", amount=1),
    "a line that lies too high": add("norm_bound", "all_gather", "seconds_per_byte", amount=1),
    "a longer norm in the bound": add("norm_bound", "norm_s", amount=1),
    "a bound that does not add up": add("norm_bound", "bound_s", amount=1),
    "no bound": put("norm_bound", value=None),
    "segments that are too large": put("execution", "max_segment_bytes", value=1),
    "nothing in flight": put("execution", "max_in_flight", value=0),
    "two in flight": put("execution", "max_in_flight", value=2),
}


def _objections(profile: Profile, document: dict[str, Any]) -> list[str]:
    try:
        return check(profile, parse_schedule(json.dumps(document)))
    except InvalidSchedule as error:
        return str(error).splitlines()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_plans_are_refused(name: str) -> None:
    """Every number that a plan with a norm states is derived again."""
    profile = TWO_LAYERS.replace(update="global-norm")
    document = json.loads(optimize_sharded(profile).to_json())
    assert _objections(profile, document) == []
    assert _objections(profile, CORRUPTIONS[name](document))


@pytest.mark.parametrize(
    "change",
    [
        add("bound", "bound_s", amount=1),
        add("bound", "total_bytes", amount=4),
        add("bound", "seconds_per_byte", amount=1),
        put("bound", value=None),
        add("transfers", 2, "start_s", amount=-2.5),
        add("proofs", 0, "min_tail_s", amount=1),
        put("proofs", 0, "set", value=[2]),
        put("sharding", "norm", value={"start_s": 4, "end_s": 12}),
    ],
)
def test_corrupted_plans_without_a_norm_are_refused(change: Change) -> None:
    """The set's bound, the chains' order and the proof."""
    document = json.loads(optimize_sharded(TWO_LAYERS).to_json())
    assert _objections(TWO_LAYERS, document) == []
    assert _objections(TWO_LAYERS, change(document))


def test_the_same_profile_gives_the_same_bytes() -> None:
    """Twice the same, whatever the order in which the profile lists its gradients makes of shards."""
    profile = TWO_LAYERS.replace(update="global-norm")
    assert optimize_sharded(profile).to_json() == optimize_sharded(profile).to_json()


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_without_bytes_are_in_no_call(count: int) -> None:
    """Nothing to send: no calls, and the window is compute."""
    profile = layered([0] * count, allreduce=affine(1.0, 1.0)).replace(update="global-norm")
    made = optimize_sharded(profile)
    assert made.transfers == ()
    assert made.predicted.iteration_s == made.predicted.compute_s
    assert check(profile, made) == []


def test_exact_is_said_only_where_it_is() -> None:
    """With a norm: not if calls are cut, which costs latency, or if traffic slows compute."""

    def method(profile: Profile, **chosen: object) -> str:
        options = Options.model_validate({"exchange": "sharded"} | chosen)
        return optimize(profile, options).solver.method

    profile = layered([8, 664], allreduce=affine(1, 0.25)).replace(update="global-norm")
    assert method(profile).endswith(", exact")
    assert method(profile, max_segment_bytes=200).endswith("exact, before calls are cut")
    assert method(profile.replace(compute_slowdown=2.0)).endswith("exact; on the compute clock")


def test_a_proof_counts_segments_that_take_less_time_than_one_call() -> None:
    """The cost jumps from 1 s for 8 bytes to 5 s for 16. Of both halves, two calls of half a second each."""
    jumping = SampledAllReduce(samples=((8, 1.0), (16, 5.0)))
    profile = layered([16], allreduce=jumping, forward_s=[0.0])
    for update in ("per-gradient", "global-norm"):
        each = profile.replace(update=update)
        schedule = optimize(each, Options(exchange="sharded", max_segment_bytes=8))
        predicted = schedule.predicted
        assert predicted.iteration_s == 1 + 2 + (update == "global-norm")
        assert predicted.lower_bound_s <= predicted.ideal_iteration_s <= predicted.iteration_s
        assert check(each, schedule) == []


def test_calls_that_cost_no_latency_are_not_fused_behind_a_norm() -> None:
    """With several dtypes, groups of one that last no longer alone make those of another wait."""
    dtypes: list[DType] = ["int8", "float32", "int8", "float32", "float16", "int8"]
    profile = layered([16, 8, 8, 16, 16, 8], allreduce=affine(0, 0.125), dtypes=dtypes).replace(
        update="global-norm"
    )
    single = optimize(profile, Options(exchange="sharded", fusion="none"))
    fused = optimize(profile)
    assert fused.predicted.iteration_s <= single.predicted.iteration_s
    assert check(profile, fused) == []


def test_a_norm_that_takes_no_time_comes_before_calls_that_do() -> None:
    """Calls of up to 8 bytes take no time, and 16 take 2 s: the gather begins when the norm does."""
    cost = SampledAllReduce(samples=((8, 0.0), (16, 2.0)))
    profile = layered([16], allreduce=cost).replace(update="global-norm", compute_slowdown=2.0)
    assert check(profile, optimize(profile)) == []


def test_a_norm_may_take_longer_than_a_window_in_which_nothing_is_sent() -> None:
    """Times then differ by rounding only."""
    cost = RingAllReduce(
        bandwidth_bytes_per_s=7149579917.51716, latency_s=0.0, reduce_bytes_per_s=3377363696.805365
    )
    profile = Profile(name="empty", workers=3, ops=(), gradients=(), allreduce=cost, update="global-norm")
    assert check(profile, optimize(profile)) == []


def test_a_bound_from_the_sum_of_both_costs_is_refused() -> None:
    """Reduce-scatters are free up to 8 bytes and take 2 s for 16; a gather takes 5 s.

    Below the sum lies the line 3 s + bytes / 4, which says 7 s for 16 bytes. But two free reduce-scatters and
    one gather take 5 s.
    """
    profile = layered([16], allreduce=affine(1, 1)).replace(
        reduce_scatter=SampledHalf(samples=((8, 0.0), (16, 2.0))),
        all_gather=SampledHalf(samples=((1, 5.0), (16, 5.0))),
    )
    schedule = optimize(profile, Options(exchange="sharded"))
    assert schedule.predicted.iteration_s == 1 + 7 + 1
    assert schedule.bound is not None
    assert schedule.bound.bound_s == 1 + 5 + 1
    assert check(profile, schedule) == []
    bound = schedule.bound.model_copy(update={"latency_s": 3.0, "seconds_per_byte": 0.25, "bound_s": 9.0})
    predicted = schedule.predicted.model_copy(update={"lower_bound_s": 9.0, "gap": 0.0})
    (found,) = check(profile, schedule.model_copy(update={"bound": bound, "predicted": predicted}))
    assert found.startswith("bound: latency_s is 3.0, of lines below both halves at most")


@pytest.mark.parametrize("update", ["per-gradient", "global-norm"])
def test_calls_that_run_alone_take_no_extra_time(update: UpdateRule) -> None:
    """A second each of backward pass, reduce-scatter, gather and forward pass: no call is beside compute.

    So the window takes 4 s and the norm's exchange of no time, although the profile says that calls take
    0.5 s longer beside compute.
    """
    second = AffineHalf(latency_s=1.0, seconds_per_byte=0.0)
    profile = layered([4], allreduce=affine(0, 0)).replace(
        update=update,
        reduce_scatter=second,
        all_gather=second,
        load=Load(delta=((1, 0.5),), sigma={}),
    )
    schedule = optimize_sharded(profile)
    assert check(profile, schedule) == []
    assert schedule.predicted.lower_bound_s == schedule.predicted.iteration_s == 4.0


@pytest.mark.parametrize("update", ["per-gradient", "global-norm"])
def test_calls_beside_compute_take_their_extra_time_by_hand(update: UpdateRule) -> None:
    """Two layers of 1 s each way; every call takes 1 s, and 0.5 s longer beside compute; the norm 0 s.

    RS2 runs from 1 to 2.5 s, beside compute until 2 s; RS1 and AG1 alone, until 4.5 s. AG2 runs beside the
    forward pass of layer 1, until 6 s; with layer 2's forward pass the window ends at 7 s.
    """
    second = AffineHalf(latency_s=1.0, seconds_per_byte=0.0)
    profile = layered([4, 4], allreduce=affine(0, 0)).replace(
        update=update,
        reduce_scatter=second,
        all_gather=second,
        load=Load(delta=((1, 0.5),), sigma={}),
    )
    schedule = optimize_sharded(profile, Options(exchange="sharded", fusion="none"))
    assert [(each.op, each.start_s, each.end_s) for each in schedule.transfers] == [
        ("reduce-scatter", 1, 2.5),
        ("reduce-scatter", 2.5, 3.5),
        ("all-gather", 3.5, 4.5),
        ("all-gather", 4.5, 6),
    ]
    assert schedule.predicted.iteration_s == 7
    assert check(profile, schedule) == []
    simulated = run_policy(profile, make_policy("sharded")).iteration_s
    assert simulated == optimize_sharded(profile).predicted.iteration_s


@given(
    sharded_profiles(),
    sharded_options,
    st.lists(st.floats(0, 3), min_size=1, max_size=3),
    st.sampled_from([1.0, 1.0, 1.5]),
)
@properties(100)
def test_the_checker_and_the_simulator_agree_with_a_stated_load(
    profile: Profile, chosen: Options, seconds: list[float], slowdown: float
) -> None:
    """A call takes the extra time of its bytes if it starts beside compute, and so may the norm."""
    delta = tuple((1 + 20 * number, extra_s) for number, extra_s in enumerate(seconds))
    loaded = profile.replace(load=Load(delta=delta, sigma={}), compute_slowdown=slowdown)
    assert check(loaded, optimize_sharded(loaded, chosen)) == []
    simulated = run_policy(loaded, make_policy("sharded")).iteration_s
    assert simulated == pytest.approx(optimize_sharded(loaded).predicted.iteration_s, rel=1e-9)
