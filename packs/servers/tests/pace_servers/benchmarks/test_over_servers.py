"""Every contender over parameter servers trains on real hosts and arrives at the same weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.contenders import BY_NAME
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import Effort, measure
from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.results import as_document, from_document
from benchmarks.harness.training import trainer
from benchmarks.harness.training.over_servers import measure_cluster
from benchmarks.harness.training.tensorflow_peer import run_unmodified
from benchmarks.harness.workload.replay import TOLERANCE
from benchmarks.harness.workload.scaling import Fitted
from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull


def on_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that makes hosts."""
    for mark in (
        pytest.mark.netns,
        pytest.mark.slow,
        pytest.mark.races_with_machine(
            reason="real processes on network namespaces must answer within their time-outs"
        ),
    ):
        test = mark(test)
    return test


def _cluster(servers: int, *, colocated: bool = False) -> Cluster:
    exchange = PushPull(
        servers=servers, colocated=colocated, worker_bytes_per_s=2e7, partition_s=1e-5, round_trip_s=1e-4
    )
    return Cluster(name="testbed", exchange=exchange)


@pytest.fixture
def larger(layered: Profile) -> Profile:
    """The layered profile with 300 kB more in the layer that is needed first: several chunks and parts."""
    return layered.replace(
        gradients=tuple(
            each.model_copy(update={"size_bytes": 300_000}) if each.name == "a.weight" else each
            for each in layered.gradients
        )
    )


@on_hosts
def test_contenders_on_hosts_of_their_own(larger: Profile, namespaces: None) -> None:  # noqa: ARG001
    """Two workers and two servers: links are measured, all train alike, and one that trains wrong is out."""
    real = trainer.Trainer.restart
    names = ("servers-fifo-whole", "servers-p3", "servers-tictac", "pace-servers-static")

    def forgetful(self: trainer.Trainer) -> None:
        real(self)
        if self._contender.name == "servers-fifo-whole":
            self._iteration = 1  # its first input is not what the others' was

    with hosts([Link(rate_mbit_s=200)] * 4) as on, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "restart", forgetful)
        layout = Layout(2, 2)
        cluster = measure_cluster(on, layout)
        result = measure(
            Contest(
                on=on,
                layout=layout,
                model="larger",
                ratio=1.0,
                fitted=Fitted(profile=larger, time_factor=1.0, size_factor=0.02),
                costs=Costs(cluster=cluster),
                paced=True,
            ),
            [BY_NAME[name] for name in names],
            Effort(rounds=2, windows=2),
            lambda _: None,
        )
    assert 0 < cluster.exchange.worker_bytes_per_s < 200e6 / 8
    for each in result.contenders:
        if each.name == "servers-fifo-whole":
            assert "weights are off" in str(each.disqualified)
            continue
        assert each.disqualified is None
        assert [len(windows) for windows in each.rounds_s] == [2, 2]
        assert each.largest_weight_error is not None
        assert each.largest_weight_error < TOLERANCE
    assert result.pacing_bytes_per_s == pytest.approx(cluster.exchange.worker_bytes_per_s / 2)
    assert from_document(as_document(result)) == result


@on_hosts
def test_servers_on_the_workers_hosts_beside_a_ring(larger: Profile, two_hosts: list[Host]) -> None:
    """Policies with a server in every worker, and a ring all-reduce, all in one setting."""
    names = (
        "servers-fifo",
        "servers-bytescheduler",
        "servers-bytescheduler-tuned",
        "pace-servers",
        "pace-static",
    )
    result = measure(
        Contest(
            on=two_hosts,
            layout=Layout(2, 2, True),
            model="larger",
            ratio=1.0,
            fitted=Fitted(profile=larger, time_factor=1.0, size_factor=0.02),
            costs=Costs(allreduce={"torch": larger.allreduce}, cluster=_cluster(2, colocated=True)),
        ),
        [BY_NAME[name] for name in names],
        Effort(rounds=1, windows=2),
        lambda _: None,
    )
    assert [(each.name, each.disqualified) for each in result.contenders] == [(name, None) for name in names]
    assert result.layout == "2 colocated"
    assert result.named("pace-static") is not None


@on_hosts
def test_a_peer_that_cannot_be_run_is_told(layered: Profile, two_hosts: list[Host], tmp_path: Path) -> None:
    """An interpreter without TensorFlow ends with what it said; nothing is left running."""
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho no module named tensorflow >&2\nexit 1\n")
    without.chmod(0o755)
    runs = run_unmodified(without, two_hosts, Layout(2, 2, True), layered, 3)
    assert [run.name for run in runs] == ["tensorflow-sync", "tensorflow-async"]
    assert all("no module named tensorflow" in str(run.disqualified) and not run.counts for run in runs)
