"""HSDP on the testbed: units of a profile, all-reduces in FIFO order, and both contenders on real hosts."""

from collections.abc import Iterator

import pytest

from benchmarks.harness.contenders import HSDP
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import Effort, measure
from benchmarks.harness.network.hosts import Host, Link, hosts, join_directly
from benchmarks.harness.training.inner_times import measure_inner_times, waits_of
from benchmarks.harness.workload.replay import plan_replay
from benchmarks.harness.workload.replicas import by_units, fifo_schedule, unit_starts
from benchmarks.harness.workload.scaling import Fitted
from pace.documents.profile import Profile
from pace.models import build
from pace.planning.allreduce.optimize import optimize_allreduce

SHARDS = 2


@pytest.fixture
def resnet50() -> Profile:
    """A model of many stages, large and small."""
    return build("resnet50", device_tflops=5.6, batch=32, workers=2)


def test_a_unit_is_ready_and_needed_as_one(resnet50: Profile) -> None:
    """With its last gradient's producer, and before its first stage; nothing else of the window changes."""
    stages = plan_replay(resnet50).stages
    starts = unit_starts(stages)
    assert starts[0] == 0
    assert 4 < len(starts) < len(stages) / 4
    united = by_units(resnet50)
    producers = {gradient.name: gradient.producer for gradient in united.gradients}
    consumers = {name: op.name for op in united.ops for name in op.waits_for}
    for first, end in zip(starts, [*starts[1:], len(stages)], strict=True):
        names = [gradient.name for stage in stages[first:end] for gradient in stage.gradients]
        assert {producers[name] for name in names} == {stages[first].producer}
        assert {consumers[name] for name in names} == {stages[first].consumer}
    assert united.timing.compute_s == resnet50.timing.compute_s
    bounds = [optimize_allreduce(each).predicted.lower_bound_s for each in (united, resnet50)]
    assert bounds[0] >= bounds[1]


def test_fifo_sends_whole_units_as_they_become_ready(resnet50: Profile) -> None:
    """Every gradient once, one all-reduce a unit, the last unit of the model first."""
    united = by_units(resnet50)
    schedule = fifo_schedule(united)
    sent = [name for group in schedule.groups for name in group.tensors]
    assert sorted(sent) == sorted(gradient.name for gradient in united.gradients)
    assert len(schedule.transfers) == len(schedule.groups) == len(unit_starts(plan_replay(resnet50).stages))
    ready = [schedule.groups[segment.group].ready_s for segment in schedule.transfers]
    assert ready == sorted(ready)
    assert [segment.priority for segment in schedule.transfers] == list(range(len(ready)))


def test_waits_are_where_a_unit_is_gathered_and_scattered() -> None:
    """Three stages, of which the last two are a unit: the stream stands still beside each unit only."""
    spans = [(0.0, 1.0), (1.5, 2.5), (2.75, 3.75), (3.75, 4.75)]  # one op before, three stages
    spans += [(5.0, 6.0), (6.0, 7.0), (7.125, 8.0), (10.0, 11.0)]  # back from the last, one op behind
    assert waits_of(spans, [0, 1]) == ([0.5, 0.25], [2.0, 0.125])


@pytest.fixture(scope="module")
def two_replicas(namespaces: None) -> Iterator[list[Host]]:  # noqa: ARG001  # it skips
    """Four hosts, of which two and two are joined directly."""
    with hosts([Link(rate_mbit_s=100)] * 4) as on:
        for first in range(0, len(on), SHARDS):
            join_directly(on[first : first + SHARDS], rate_mbit_s=400)
        yield on


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.races_with_machine(
    reason="real processes on network namespaces must answer within their time-outs"
)
def test_contenders_train_alike(two_replicas: list[Host], layered: Profile) -> None:
    """FIFO or not, with or without a barrier: weights are those of four ranks."""
    said: list[str] = []
    layout = Layout(4, shards=SHARDS)
    fitted = Fitted(profile=layered, time_factor=1.0, size_factor=1.0, shards=SHARDS)
    inner = measure_inner_times(two_replicas, layout, fitted.whole)
    assert len(inner.gather_s) == len(inner.scatter_s) == 3
    assert min(inner.gather_s + inner.scatter_s) >= 0
    result = measure(
        Contest(
            on=two_replicas,
            layout=layout,
            model="layered",
            ratio=1.0,
            fitted=fitted,
            costs=Costs(allreduce={"torch": layered.allreduce}),
            inner=inner,
        ),
        HSDP,
        Effort(rounds=1, windows=2),
        said.append,
    )
    assert said == []
    assert all(each.counts for each in result.contenders)
    assert [each.peer for each in result.contenders] == [True, True, False]
    assert result.two_wires is not None
    assert {each.bound_s for each in result.contenders} == {result.two_wires["joint_s"]}
