"""Schedules of push and pull: their placement is kept, and one that does not fit is refused."""

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.documents.schedule import Schedule
from pace.errors import ScheduleMismatch
from pace.runtime.engine.plan import plan_from_schedule
from pace_servers.planning.clusters import cluster_for
from pace_servers.planning.optimize import optimize_servers
from tests.pace_servers.runtime.jobs import train_over_servers
from tests.runtime.launch import run_ranks
from tests.runtime.models import build
from tests.runtime.schedules import sizes_of
from tests.runtime.training import Case, difference, equal_bits, train_plainly


def _schedule(workers: int, servers: int) -> Schedule:
    """A plan for the tests' convolutional model, of small segments."""
    sizes = sizes_of(build("conv"))
    ops = [Op(name=f"bwd/{size.name}", duration_s=0.001, stream="compute") for size in reversed(sizes)]
    ops += [
        Op(name=f"fwd/{size.name}", duration_s=0.001, stream="compute", waits_for=(size.name,))
        for size in sizes
    ]
    gradients = tuple(
        Gradient(name=size.name, size_bytes=size.size_bytes, dtype="float32", producer=f"bwd/{size.name}")
        for size in sizes
    )
    profile = Profile(
        name="conv",
        workers=workers,
        ops=tuple(ops),
        gradients=gradients,
        allreduce=AffineAllReduce(latency_s=1e-5, seconds_per_byte=1e-6),
    )
    cluster = cluster_for(profile, servers=servers, worker_bytes_per_s=1e6)
    return optimize_servers(profile, Options(cluster=cluster))


def test_the_placement_of_a_schedule_is_kept() -> None:
    """Every segment has the schedule's server, in the schedule's order."""
    schedule = _schedule(2, 2)
    plan = plan_from_schedule(schedule, sizes_of(build("conv")), 2, servers=2)
    planned = sorted(schedule.of_op("push"), key=lambda segment: segment.priority)
    assert [segment.link for segment in plan.segments] == [segment.link // 2 for segment in planned]
    assert {segment.link for segment in plan.segments} == {0, 1}


@pytest.mark.parametrize(
    ("servers", "message"), [(3, "2 parameter servers, but there are 3"), (0, r"ParameterServers\(\)")]
)
def test_a_schedule_for_other_servers_is_refused(servers: int, message: str) -> None:
    """So is one given to a job that has none."""
    with pytest.raises(ScheduleMismatch, match=message):
        plan_from_schedule(_schedule(2, 2), sizes_of(build("conv")), 2, servers=servers)


def test_training_by_a_schedule_of_push_and_pull() -> None:
    """Weights are those of plain training, under the plan's order and with waiting for what is late."""
    schedule = _schedule(2, 2)
    cases = [
        Case(model="conv", optimizer="adam", steps=5, options={"schedule": schedule, "order": order})
        for order in ("auto", "static")
    ]
    ranks = run_ranks(train_over_servers, 2, cases)
    expected = train_plainly(cases[0], 2)
    for number in range(len(cases)):
        assert difference(ranks[0][number], expected) < 1e-4
        assert equal_bits(ranks[0][number], ranks[1][number])
