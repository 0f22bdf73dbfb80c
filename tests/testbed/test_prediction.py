"""Predictions follow each contender's own rules."""

import pytest

from benchmarks.harness.contenders import ALLREDUCE, BY_NAME, Contender
from benchmarks.harness.prediction import predict, schedule_for
from benchmarks.harness.workload.replay import renamed
from pace.checker import check
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile, UpdateRule
from pace.documents.schedule import Schedule
from pace.planning.optimize import lower_bound_s
from pace.planning.sharded.optimize import optimize_sharded


def test_ddp_s_buckets_and_barrier_by_hand(layered: Profile) -> None:
    """One bucket of 484 bytes, ready after 12 ms, takes 4.484 ms; then forward from the first use, 6 ms."""
    slow = AffineAllReduce(latency_s=4e-3, seconds_per_byte=1e-6)
    profile = renamed(layered.replace(allreduce=slow))
    assert predict(BY_NAME["ddp"], profile, 1.0, None) == pytest.approx(0.012 + 0.004484 + 0.006)


def test_the_planned_order_is_what_the_schedule_promises(layered: Profile) -> None:
    """For the static order the simulator agrees with the schedule's own prediction."""
    profile = renamed(layered)
    contender = BY_NAME["pace-static"]
    schedule = schedule_for(contender, profile, 1.0)
    assert schedule is not None
    assert predict(contender, profile, 1.0, schedule) == pytest.approx(schedule.predicted.iteration_s)


def test_bytescheduler_partitions_evenly(layered: Profile) -> None:
    """Each gradient is its own group, cut into 4e6 bytes times the factor, nearest the input first."""
    profile = renamed(layered)
    schedule = schedule_for(BY_NAME["bytescheduler"], profile, 1e-5)
    assert isinstance(schedule, Schedule)
    assert [len(group.tensors) for group in schedule.groups] == [1, 1, 1, 1]
    sizes = [(schedule.groups[s.group].size_bytes, s.size_bytes) for s in schedule.transfers]
    assert sizes[:10] == [(400, 40)] * 10
    assert sorted(sizes[10:12]) == [(16, 16), (20, 20)]
    assert sizes[12:] == [(48, 40), (48, 8)]
    assert schedule.execution.max_in_flight * schedule.execution.max_segment_bytes == 160


@pytest.mark.parametrize("update", ["per-gradient", "global-norm"])
@pytest.mark.parametrize("contender", ALLREDUCE, ids=lambda contender: contender.name)
def test_nobody_is_predicted_below_the_bound(
    layered: Profile, contender: Contender, update: UpdateRule
) -> None:
    """Every contender has a prediction, and none beats the bound that holds for all."""
    profile = renamed(layered).replace(update=update)
    schedule = schedule_for(contender, profile, 1.0)
    bound = lower_bound_s(profile)
    if contender.sharded and update == "per-gradient":
        bound = min(bound, optimize_sharded(profile).predicted.lower_bound_s)
    assert predict(contender, profile, 1.0, schedule) >= bound * (1 - 1e-9)
    if contender.kind == "pace":
        assert schedule is not None
        assert not check(profile, schedule)
