"""No field of a schedule is left unread: a change of any is refused, or is listed here with its reason."""

from collections.abc import Callable
from functools import cache

import pytest

from pace import Options, Profile, Schedule, optimize
from pace.documents.schedule import parse_schedule
from pace.kinds import check
from pace.kinds.kind import AnyProblem
from tests.pace.checker.every_field import RECORDS, accepted_changes, donors_of
from tests.sharded_graphs import forward, graph_of
from tests.strategies import affine, layered

# True as well: a bound below what its own numbers prove, and one that the other order or collective proves,
# too. And of other plans, what the curve says is not judged.
WEAKER = {
    "solver.curve.#.# less",
    "chain_bound.bound_s less",
    "chain_bound.order",
    "graph.late.collective",
    "norm_bound.reduce_scatter.order",
    "norm_bound.all_gather.order",
}

PROFILE = layered(
    [116, 40, 84, 12],
    allreduce=affine(0.5, 0.05),
    backward_s=[2, 5, 3, 1],
    forward_s=[4, 2, 1, 3],
    workers=2,
)
WITH_NORM = Profile.model_validate(PROFILE.model_dump() | {"update": "global-norm"})
SLOWED = Profile.model_validate(PROFILE.model_dump() | {"compute_slowdown": 1.5})
SMALL, LARGE = graph_of(forward(3)), graph_of(forward(12))
SLOWED_GRAPH = graph_of(forward(12), compute_slowdown=1.5)

PROBLEMS: dict[str, tuple[AnyProblem, Options]] = {
    "allreduce": (PROFILE, Options()),
    "cut": (PROFILE, Options(max_segment_bytes=40)),
    "slowed": (SLOWED, Options()),
    "slots": (PROFILE, Options(slot_s=0.5, oracle="lp")),
    "ddp": (PROFILE, Options(framework="ddp")),
    "sharded": (PROFILE, Options(exchange="sharded")),
    "norm": (WITH_NORM, Options(exchange="sharded")),
    "graph": (SMALL, Options(memory_bytes=10**6)),
    "large graph": (LARGE, Options(memory_bytes=3000)),
    "slowed graph": (SLOWED_GRAPH, Options()),
}


@cache
def schedules() -> dict[str, Schedule]:
    """Return the schedule of each problem."""
    return {name: optimize(problem, options) for name, (problem, options) in PROBLEMS.items()}


def faults_for(problem: AnyProblem) -> Callable[[str], list[str]]:
    """Return what finds the faults of a schedule, given as JSON, for a problem."""
    return lambda document: check(problem, parse_schedule(document))


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_field_is_judged(name: str) -> None:
    """Only records of how the plan was made may change, and a proof may prove less."""
    found = schedules()
    accepted = accepted_changes(found[name], faults_for(PROBLEMS[name][0]), donors_of(found.values()))
    assert accepted <= RECORDS | WEAKER
