"""The checker accepts every answer of the solver and rejects every kind of corruption."""

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

import pace.checker as check_package
from pace import Options, Profile, Schedule, optimize
from pace.documents.collective_costs import SampledAllReduce
from pace.kinds import check
from tests.pace.checker.corruptions import CORRUPTIONS, IN_CONTINUOUS_TIME, IN_SLOTS, Change
from tests.strategies import affine, layered, options, profiles, properties, times


@given(profiles(), options())
@properties(60)
def test_every_schedule_of_the_solver_is_accepted(profile: Profile, chosen: Options) -> None:
    """Any profile, any options: nothing to object to."""
    assert check(profile, optimize(profile, chosen)) == []


@given(profiles(max_gradients=5, duration=times()))
@properties(40)
def test_schedules_of_profiles_with_tiny_and_huge_times_are_accepted(profile: Profile) -> None:
    """1e-9 s beside 1e3 s: rounding is not taken for a violation."""
    assert check(profile, optimize(profile)) == []


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Four layers of two dtypes, with one gradient without bytes, whose best plan cuts a group."""
    return layered(
        [40, 12, 0, 6],
        allreduce=affine(0.125, 0.125),
        backward_s=[1, 1, 1, 1],
        forward_s=[1, 2, 1, 2],
        dtypes=["int8", "int8", "float16", "float16"],
    )


@pytest.fixture(scope="module")
def schedules(profile: Profile) -> dict[str, Schedule]:
    """Return schedules that hold everything that can be corrupted."""
    made = {
        "continuous": optimize(profile),
        "slotted": optimize(profile, Options(slot_s=0.25, fusion="none")),
        "barrier": optimize(profile, Options(framework="ddp")),
    }
    for schedule in made.values():
        assert check(profile, schedule) == []
    assert len(made["continuous"].transfers) > len([g for g in made["continuous"].groups if g.size_bytes])
    return made


def objections(profile: Profile, document: dict[str, Any]) -> list[str]:
    """Return what is said against a document, by the schedule's own rules or by the checker."""
    try:
        schedule = Schedule.model_validate(document)
    except ValidationError as error:
        return [str(error)]
    return check(profile, schedule)


@pytest.mark.parametrize("kind", ["continuous", "slotted", "barrier"])
@pytest.mark.parametrize("change", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_rejected(
    profile: Profile, schedules: dict[str, Schedule], kind: str, change: Change
) -> None:
    """Each alone is enough, in every kind of schedule."""
    document = schedules[kind].model_dump(mode="json")
    corrupted = change(document)
    assert corrupted != document
    assert objections(profile, corrupted)


@pytest.mark.parametrize("kind", ["continuous", "slotted", "barrier"])
@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if "bound of" in name or "bound with" in name])
def test_a_fabricated_bound_is_rejected_for_what_it_rests_on(
    profile: Profile, schedules: dict[str, Schedule], kind: str, name: str
) -> None:
    """Everything that follows from the bound is consistent: only its own parts give it away."""
    document = CORRUPTIONS[name](schedules[kind].model_dump(mode="json"))
    assert [objection for objection in objections(profile, document) if objection.startswith("bound")]


@pytest.mark.parametrize("change", IN_CONTINUOUS_TIME.values(), ids=IN_CONTINUOUS_TIME)
def test_a_corruption_of_a_continuous_schedule_is_rejected(
    profile: Profile, schedules: dict[str, Schedule], change: Change
) -> None:
    """What only a schedule without slots can be wrong about."""
    assert objections(profile, change(schedules["continuous"].model_dump(mode="json")))


@pytest.mark.parametrize("change", IN_SLOTS.values(), ids=IN_SLOTS)
def test_a_corruption_of_a_slotted_schedule_is_rejected(
    profile: Profile, schedules: dict[str, Schedule], change: Change
) -> None:
    """What only a schedule with slots can be wrong about."""
    assert objections(profile, change(schedules["slotted"].model_dump(mode="json")))


def test_a_bound_below_noisy_samples_must_lie_below_their_smoothed_curve() -> None:
    """Between the sizes that a coarse grid would look at there is a knot."""
    sampled = SampledAllReduce(samples=((1, 4), (33, 4), (34, 20), (100, 21)))
    profile = layered([33, 33, 33], allreduce=sampled)
    schedule = optimize(profile)
    assert check(profile, schedule) == []
    document = schedule.model_dump(mode="json")
    document["chain_bound"] |= {"latency_s": 3.0, "seconds_per_byte": 0.15}
    assert any("chain_bound: its line" in objection for objection in objections(profile, document))


def test_a_schedule_slower_than_the_best_is_accepted_if_it_says_so(profile: Profile) -> None:
    """The checker judges truth, not speed: fusing nothing is legal."""
    assert check(profile, optimize(profile, Options(fusion="none"))) == []


def test_slots_by_the_billion_are_checked_without_walking_them(profile: Profile) -> None:
    """A window of 16 s in slots of 20 ns: 8e8 slots."""
    assert check(profile, optimize(profile, Options(slot_s=2e-8))) == []


def test_a_schedule_for_another_profile_is_rejected(profile: Profile) -> None:
    """By its hash, and by everything that differs."""
    other = profile.replace(name="renamed")
    [violation] = check(other, optimize(profile))
    assert "profile_sha256" in violation
    slower = profile.replace(allreduce=affine(0.5, 0.125))
    assert any("transfer_s" in violation for violation in check(slower, optimize(profile)))


def imported_from_pace(checker: ModuleType) -> set[str]:
    """Return what the modules of a checker import of PACE and its packs, without one another."""
    assert checker.__file__ is not None
    imported = set()
    for module in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    own = checker.__name__
    return {name for name in imported if name and name.startswith("pace") and not name.startswith(own)}


def test_the_checker_imports_nothing_that_solves() -> None:
    """It reads documents alone: an error of the solver's is no error of its judge."""
    ours = imported_from_pace(check_package)
    assert any(name.startswith("pace.documents.") for name in ours)
    assert {name for name in ours if not name.startswith("pace.documents.")} <= {"pace.errors"}
