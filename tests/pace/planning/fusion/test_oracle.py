"""Linear programs as the oracle of the search: the schedules of longest tail first, whoever solves them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import InvalidOptions, Options, Profile, Schedule, load_profile, optimize
from pace.kinds import check
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import fuse
from pace.solver.linear_program import lp_pulp
from pace.solver.partition import max_min_partitions
from tests.strategies import affine, layered, profiles, properties

EXAMPLES = Path(__file__).parents[4] / "examples" / "profiles"
HAND = {
    "one": layered([4], allreduce=affine(1, 1)),
    "nothing to send": layered([0, 0], allreduce=affine(1, 1)),
    "paper": layered([6, 1, 3, 2], allreduce=affine(0.5, 0.25)),
    "alike": layered([3] * 8, allreduce=affine(0.5, 0.25), backward_s=[1] + [0] * 7),
    "two dtypes": layered([5, 2, 7, 3], allreduce=affine(0.5, 0.25), dtypes=["int8", "float32"] * 2),
}


def solve(profile: Profile, **chosen: Any) -> Schedule:
    """Return the schedule, accepted by the checker."""
    schedule = optimize(profile, Options.model_validate(chosen))
    assert check(profile, schedule) == []
    return schedule


def without_oracle(schedule: Schedule) -> Schedule:
    """Return the schedule without what names its oracle."""
    named = {"oracle": "jackson", "lp_solver": None, "num_programs": None, "programs_s": None}
    return schedule.model_copy(update={"solver": schedule.solver.model_copy(update=named)})


def assert_same_for_every_oracle(profile: Profile, lp_solver: str, **chosen: Any) -> Schedule:
    """Return the LP's schedule, which is that of longest tail first."""
    by_program = solve(profile, oracle="lp", lp_solver=lp_solver, **chosen)
    assert without_oracle(by_program) == solve(profile, **chosen)
    return by_program


@pytest.mark.parametrize("lp_solver", ["scipy", "pulp"])
@pytest.mark.parametrize("fusion", ["optimal", "paper", "none"])
@pytest.mark.parametrize("profile", HAND.values(), ids=HAND)
def test_small_profiles(profile: Profile, fusion: str, lp_solver: str) -> None:
    """Every way to fuse, by HiGHS and by CBC."""
    assert_same_for_every_oracle(profile, lp_solver, fusion=fusion, slot_s=0.25)


@pytest.mark.parametrize(
    ("name", "fusion"),
    [*((name, "optimal") for name in ("vgg16", "resnet50", "transformer")), ("vgg16", "paper")],
)
def test_bundled_profiles(name: str, fusion: str) -> None:
    """The search over R asks the program each time."""
    profile = load_profile(EXAMPLES / f"{name}.json")
    slot_s = optimize(profile).predicted.iteration_s / 30
    schedule = assert_same_for_every_oracle(profile, "scipy", fusion=fusion, slot_s=slot_s)
    assert schedule.solver.num_programs is not None
    assert schedule.solver.num_programs > 1


def test_many_gradients() -> None:
    """A large program for each number of groups, up to sixty."""
    profile = layered([1 + 7 * number % 11 for number in range(60)], allreduce=affine(0.125, 0.25))
    slot_s = optimize(profile).predicted.iteration_s / 8
    schedule = assert_same_for_every_oracle(profile, "scipy", fusion="paper", slot_s=slot_s)
    assert schedule.solver.num_programs is not None
    assert schedule.solver.num_programs > 30


def test_a_bundled_profile_by_pulp() -> None:
    """VGG16, every number of groups, by CBC."""
    profile = load_profile(EXAMPLES / "vgg16.json")
    slot_s = optimize(profile).predicted.iteration_s / 40
    assert_same_for_every_oracle(profile, "pulp", fusion="paper", slot_s=slot_s)


@given(profiles(), st.sampled_from([0.25, 0.7, 1.0]), st.sampled_from(["optimal", "paper", "none"]))
@properties(40)
def test_drawn_profiles(profile: Profile, slot_s: float, fusion: str) -> None:
    """Branches, several dtypes, ties: one schedule."""
    assert_same_for_every_oracle(profile, "scipy", fusion=fusion, slot_s=slot_s, search_calls=50)


@given(profiles(max_gradients=4), st.sampled_from([0.5, 1.0]))
@properties(8)
def test_drawn_profiles_by_pulp(profile: Profile, slot_s: float) -> None:
    """The same by CBC, which is a process for each program."""
    assert_same_for_every_oracle(profile, "pulp", fusion="paper", slot_s=slot_s)


def test_every_number_of_groups_is_one_program() -> None:
    """The paper's search over four gradients without latency, so that no R is cut off: R = 1 to 4."""
    profile = layered([6, 1, 3, 2], allreduce=affine(0, 0.25))
    problem = FusionProblem.of(profile)
    options = Options(oracle="lp", fusion="paper", slot_s=0.25)
    oracle = PricingOracle(options)
    fuse(problem, options, oracle=oracle)
    assert oracle.num_programs == len(list(max_min_partitions(problem.sizes))) == 4
    assert oracle.programs_s > 0
    record = optimize(profile, options).solver
    assert (record.lp_solver, record.num_programs) == ("scipy", 4)
    assert optimize(profile, Options(fusion="paper", slot_s=0.25)).solver.num_programs is None


def test_a_solver_that_is_not_installed_is_refused() -> None:
    """The message says which are."""
    chosen = Options(oracle="lp", slot_s=1.0, lp_solver="pulp:NO_SUCH")
    with pytest.raises(InvalidOptions, match=r'"pulp:NO_SUCH".*PULP_CBC_CMD.*"scipy"'):
        optimize(HAND["paper"], chosen)


def test_a_solver_is_named_as_pulp_names_it() -> None:
    """Whatever PuLP can run here gives the same schedule."""
    for name in lp_pulp.available():
        assert_same_for_every_oracle(HAND["paper"], f"pulp:{name}", fusion="paper", slot_s=0.25)


@pytest.mark.parametrize("chosen", [{}, {"exchange": "sharded"}])
def test_an_lp_solver_without_linear_programs_is_refused(chosen: dict[str, Any]) -> None:
    """It would be ignored."""
    with pytest.raises(InvalidOptions, match="lp_solver"):
        optimize(HAND["paper"], Options.model_validate(chosen | {"lp_solver": "pulp"}))


@pytest.mark.parametrize("lp_solver", ["scipy", "pulp"])
def test_the_slot_length_that_is_said_to_fit_fits_every_number_of_groups(lp_solver: str) -> None:
    """The refusal counts the largest program of the search, not the first that is too large."""
    profile = layered([3] * 12, allreduce=affine(0.5, 0.25))
    options = Options(oracle="lp", lp_solver=lp_solver, slot_s=1e-6, fusion="paper")
    with pytest.raises(InvalidOptions) as refused:
        optimize(profile, options)
    fitting = float(str(refused.value).split("slot_s of ")[1].split()[0].rstrip(","))
    problem = FusionProblem.of(profile)
    of_all = problem.chain_of(problem.classes()[0])
    PricingOracle(options.model_copy(update={"slot_s": fitting})).refuse_too_large(
        of_all.fuse(cuts, problem.cost) for cuts in max_min_partitions(problem.sizes)
    )
