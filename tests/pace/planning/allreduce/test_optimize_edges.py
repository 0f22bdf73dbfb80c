"""Degenerate and extreme input, and options that do not fit."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pace import Gradient, InvalidOptions, Op, Options, Profile, Schedule, load_profile, optimize
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.load import NO_LOAD
from pace.documents.profile import DType
from pace.kinds import check
from pace.planning.allreduce.realize import SlotWarning
from pace.solver.linear_program.lp import MAX_VARIABLES, num_variables
from pace.solver.one_machine import Instance
from tests.strategies import affine, layered

EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "profiles").glob("*.json"))
RESNET50, VGG16 = (next(each for each in EXAMPLES if each.stem == name) for name in ("resnet50", "vgg16"))


def assert_right(profile: Profile, chosen: Options | None = None) -> Schedule:
    """Return the schedule, accepted by the checker."""
    schedule = optimize(profile, chosen)
    assert check(profile, schedule) == []
    return schedule


EVERY_KIND = [
    Options(),
    Options(fusion="paper"),
    Options(fusion="none"),
    Options(slot_s=0.5),
    Options(slot_s=0.5, oracle="lp"),
    Options(framework="ddp"),
    Options(framework="horovod"),
    Options(risk="p95"),
]


@pytest.mark.parametrize("chosen", EVERY_KIND, ids=str)
@pytest.mark.parametrize(
    ("profile", "iteration_s"),
    [
        (layered([], allreduce=affine(1, 1)), 0.0),
        (Profile(name="empty", workers=1, ops=(), gradients=(), allreduce=affine(1, 1)), 0.0),
        (layered([4], allreduce=affine(1, 1)), 1 + 5 + 1),
        (layered([0], allreduce=affine(1, 1)), 2),
        (layered([0, 0, 4], allreduce=affine(1, 1)), 3 + 5 + 3),
        (layered([4, 4], allreduce=affine(1, 1), workers=1), 4),
        (layered([4, 4], allreduce=affine(0, 0)), 4),
        (layered([4, 4], allreduce=affine(1, 0.5), backward_s=[0, 0], forward_s=[0, 0]), 1 + 4),
        (layered([0, 0], allreduce=affine(1, 1), backward_s=[0, 0], forward_s=[0, 0]), 0),
    ],
)
def test_degenerate_profiles(profile: Profile, iteration_s: float, chosen: Options) -> None:
    """No gradients, one, none with bytes, one worker, a free network, no compute."""
    schedule = assert_right(profile, chosen)
    if chosen.fusion != "none":
        assert schedule.predicted.iteration_s == pytest.approx(iteration_s)


def test_a_gradient_without_bytes_can_make_the_window() -> None:
    """Produced beside the stream after 5 s, and 3 s of forward pass wait for it."""
    profile = Profile(
        name="late",
        workers=2,
        ops=(Op(name="bwd", duration_s=5), Op(name="fwd", duration_s=3, waits_for=("empty",))),
        gradients=(Gradient(name="empty", size_bytes=0, producer="bwd"),),
        allreduce=affine(1, 1),
    )
    schedule = assert_right(profile)
    assert schedule.predicted.iteration_s == 8
    assert schedule.transfers == ()


@pytest.mark.parametrize("chosen", EVERY_KIND, ids=str)
def test_equal_ready_times_and_tails(chosen: Options) -> None:
    """Ten gradients that nothing tells apart."""
    profile = layered(
        [3] * 10, allreduce=affine(0.5, 0.25), backward_s=[1] + [0] * 9, forward_s=[0] * 9 + [1]
    )
    schedule = assert_right(profile, chosen)
    if chosen.fusion == "optimal" and chosen.slot_s is None:
        assert len([group for group in schedule.groups if group.size_bytes]) == 1
        assert schedule.predicted.iteration_s == 1 + 0.5 + 7.5 + 1


def test_one_gradient_larger_than_all_others() -> None:
    """A terabyte between gradients of a few bytes."""
    sizes = [4, 10**12, 4, 4]
    schedule = assert_right(layered(sizes, allreduce=affine(1e-4, 1e-9)))
    assert schedule.predicted.gap < 2e-3


@pytest.mark.parametrize("chosen", EVERY_KIND, ids=str)
def test_nanoseconds_beside_kiloseconds(chosen: Options) -> None:
    """1e-9 s and 1e3 s in one profile."""
    profile = layered(
        [1, 10**6, 2, 3],
        allreduce=affine(1e-9, 1e-9),
        backward_s=[1e3, 1e-9, 1e-9, 1e3],
        forward_s=[1e-9, 1e3, 1e-9, 1e3],
    )
    assert_right(profile, chosen)


def test_a_million_slots() -> None:
    """Longest tail first does not walk slots; the linear program says which length would fit."""
    profile = layered([3, 5, 2], allreduce=affine(0.5, 0.25), backward_s=[1, 1, 1], forward_s=[1, 1, 1])
    schedule = assert_right(profile, Options(slot_s=1e-5))
    assert schedule.transfers[-1].start_slot is not None
    assert schedule.transfers[-1].start_slot > 100_000
    with pytest.raises(InvalidOptions, match=r"use slot_s of 2\.5e-06"):
        optimize(profile, Options(oracle="lp", slot_s=1e-7))


def test_the_slot_length_that_is_said_to_fit_fits() -> None:
    """The message is of use."""
    profile = layered([3] * 40, allreduce=affine(0.5, 0.25))
    with pytest.raises(InvalidOptions) as refused:
        optimize(profile, Options(oracle="lp", slot_s=1e-4, fusion="none"))
    fitting = float(str(refused.value).split("use slot_s of ")[1].split(",")[0])
    schedule = optimize(profile, Options(slot_s=fitting, fusion="none"))
    ready, processing, tail = (
        np.array([getattr(group, name) for group in schedule.groups])
        for name in ("ready_s", "duration_s", "tail_s")
    )
    assert (
        num_variables(Instance(ready=ready, processing=processing, tail=tail).in_slots(fitting))
        <= MAX_VARIABLES
    )


MISFITS: list[tuple[dict[str, object], Sequence[str]]] = [
    ({"oracle": "lp"}, ["slot_s", "jackson"]),
    ({"framework": "ddp", "slot_s": 1.0}, ["slot_s", "ddp"]),
    ({"framework": "horovod", "fusion": "paper"}, ["paper", "horovod", "optimal"]),
    ({"framework": "ddp", "max_segment_bytes": 8}, ["max_segment_bytes"]),
    ({"slot_s": 1.0, "max_segment_bytes": 8}, ["max_segment_bytes", "slot_s"]),
    ({"slot_s": 1.0, "risk": "p95"}, ["risk", "slot_s"]),
    ({"slot_s": 1e-18}, ["slot_s", "use slot_s of"]),
]


@pytest.mark.parametrize(("chosen", "named"), MISFITS)
def test_options_that_do_not_fit_are_refused_in_one_sentence(
    chosen: dict[str, object], named: Sequence[str]
) -> None:
    """Which says what would work."""
    profile = layered([3, 5], allreduce=affine(0.5, 0.25))
    with pytest.raises(InvalidOptions) as refused:
        optimize(profile, Options.model_validate(chosen))
    assert "\n" not in str(refused.value)
    for part in named:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "chosen",
    [
        {"oracle": "guess"},
        {"fusion": "all"},
        {"framework": "mpi"},
        {"exchange": "gossip"},
        {"slot_s": 0},
        {"slot_s": -1},
        {"slot_s": float("nan")},
        {"slot_s": float("inf")},
        {"slot_s": 1e300},
        {"max_group_bytes": 0},
        {"max_segment_bytes": 0},
        {"risk": "worst"},
        {"search_calls": 0},
        {"orcale": "lp"},
    ],
)
def test_options_that_do_not_exist_are_refused(chosen: dict[str, object]) -> None:
    """Unknown values and names, and numbers that mean nothing."""
    with pytest.raises(ValidationError):
        Options.model_validate(chosen)


def test_samples_whose_halves_are_cheaper_than_the_whole() -> None:
    """A cost that jumps: cutting a group may be faster than sending it whole, and is told truly."""
    jump = SampledAllReduce(samples=((10, 1), (11, 50)))
    assert_right(layered([20, 20, 20], allreduce=jump))
    assert_right(layered([20, 20, 20], allreduce=jump), Options(max_segment_bytes=10))
    predicted = assert_right(layered([1000], allreduce=jump)).predicted
    assert predicted.iteration_s == predicted.lower_bound_s == 1 + 100 + 1


def test_groups_that_are_cut_are_sought_with_the_cost_of_their_segments() -> None:
    """Beyond 100 bytes, a call costs four times as much per byte: groups for whole calls take 31 s."""
    jump = SampledAllReduce(samples=((100, 1), (101, 4), (1000, 12), (3000, 40)))
    sizes = [300, 300, 300, 100, 100, 300, 100, 4, 300, 200, 100, 4]
    profile = layered(sizes, allreduce=jump).replace(load=NO_LOAD)
    assert assert_right(profile).predicted.iteration_s <= 28


def test_a_barrier_makes_no_plan_of_several_dtypes_faster() -> None:
    """Without a forward pass, DDP's buckets are groups like any other."""
    sizes = [1, 1, 1, 30, 8, 30, 1, 1, 1, 1, 8, 1, 1, 1]
    dtypes: list[DType] = ["float32", "float32", "float32", "float32", "float16", "int8", "int8"]
    dtypes += ["float32", "int8", "float16", "float32", "int8", "int8", "float16"]
    profile = layered(
        sizes,
        allreduce=affine(2.0, 0.125),
        backward_s=[1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0],
        forward_s=[0.0] * len(sizes),
        dtypes=dtypes,
    ).replace(load=NO_LOAD)
    ddp = assert_right(profile, Options(framework="ddp")).predicted
    assert assert_right(profile).predicted.iteration_s <= ddp.iteration_s


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_small_segments_are_cut_as_many_as_it_takes(path: Path) -> None:
    """64 KiB of a large model: hundreds of segments a group."""
    profile = load_profile(path)
    schedule = assert_right(profile, Options(max_segment_bytes=65_536, fusion="paper"))
    assert max(segment.size_bytes for segment in schedule.transfers) <= 65_536
    assert len(schedule.transfers) >= sum(gradient.size_bytes for gradient in profile.gradients) / 65_536


def test_segments_beyond_counting_are_refused() -> None:
    """The refusal names a size that fits."""
    profile = layered([4_000_000, 4_000_000], allreduce=affine(1, 1e-6))
    with pytest.raises(InvalidOptions, match=r"2,000,000 segments.* use 9,"):
        optimize(profile, Options(max_segment_bytes=4))


def test_a_proof_counts_segments_that_take_less_time_than_one_call() -> None:
    """The cost jumps from 0.5 s for 4 bytes to 4 s for 16: four calls of 4 bytes take 2 s."""
    profile = layered([16], allreduce=SampledAllReduce(samples=((4, 0.5), (16, 4.0))))
    for slowdown in (1.0, 2.0):
        predicted = assert_right(
            profile.replace(compute_slowdown=slowdown), Options(max_segment_bytes=4)
        ).predicted
        assert predicted.iteration_s == pytest.approx(1 + 2 + 1)
        assert predicted.lower_bound_s <= predicted.ideal_iteration_s <= predicted.iteration_s


def coarse(factor: float, path: Path = RESNET50) -> tuple[Profile, Options]:
    """Return a profile, and slots that are this many times as long as its largest all-reduce."""
    profile = load_profile(path)
    largest = max(gradient.size_bytes for gradient in profile.gradients)
    return profile, Options(slot_s=factor * float(profile.cost(largest)), fusion="paper")


def test_slots_that_are_too_long_are_warned_of_with_numbers() -> None:
    """Slots longer than every all-reduce: the cost and a slot that would do; that slot is not warned of."""
    profile, options = coarse(4.0)
    with pytest.warns(SlotWarning, match=r"slots of 0\.\d+ s make the iteration \d+\.\d % longer"):
        schedule = optimize(profile, options)
    assert re.search(r"takes 0\.\d+ s, and 0\.\d+ s without slots", schedule.solver.method)
    fitting = float(schedule.solver.method.split("slot_s of ")[1].split()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = optimize(profile, options.model_copy(update={"slot_s": fitting}))
    assert "slots" not in fine.solver.method
    assert fine.predicted.ideal_iteration_s < schedule.predicted.ideal_iteration_s


@pytest.mark.parametrize(
    "update",
    [{"fusion": "none"}, {"fusion": "optimal"}, {"oracle": "lp"}],
    ids=["unfused", "optimal", "linear program"],
)
def test_every_search_in_slots_is_warned_of(update: dict[str, Any]) -> None:
    """Whatever chooses the groups, and whatever orders them."""
    # A linear program of ResNet-50 takes half a minute.
    profile, options = coarse(2.0, VGG16 if update.get("oracle") == "lp" else RESNET50)
    with pytest.warns(SlotWarning, match="use shorter slots"):
        optimize(profile, options.model_copy(update=update))
