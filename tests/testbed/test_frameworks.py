"""Frameworks on the testbed: their own loops, under their DDP and under PACE, arrive at the same weights."""

import pytest

from benchmarks.harness.contenders import FRAMEWORKS
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import Effort, measure
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.workload.scaling import Fitted
from pace.documents.profile import Profile
from tests.runtime.frameworks.programs import without


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.races_with_machine(
    reason="real processes on network namespaces must answer within their time-outs"
)
@without("lightning", "accelerate")
def test_frameworks_train_alike(two_hosts: list[Host], layered: Profile) -> None:
    """A real Trainer and a real Accelerator, asked for iterations in turns, have the reference's weights."""
    said: list[str] = []
    result = measure(
        Contest(
            on=two_hosts,
            layout=Layout(2),
            model="layered",
            ratio=1.0,
            fitted=Fitted(profile=layered, time_factor=1.0, size_factor=1.0),
            costs=Costs(allreduce={"torch": layered.allreduce}),
        ),
        FRAMEWORKS,
        Effort(rounds=2, windows=2),
        said.append,
    )
    assert said == []
    assert all(each.counts for each in result.contenders)
    assert all([len(windows) for windows in each.rounds_s] == [2, 2] for each in result.contenders)
