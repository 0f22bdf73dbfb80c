"""What is put on the wire is what is simulated: partitions, servers, order, and the rules for workers."""

import pytest

from benchmarks.harness.contenders import BY_NAME, OVER_SERVERS, Contender
from benchmarks.harness.layouts import Layout, parse_layout
from benchmarks.harness.server_plans import predict_over_servers, schedule_over_servers, traffic_of
from benchmarks.harness.workload.replay import renamed
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.kinds import check
from pace.runtime.engine.plan import GradientSize, plan_from_schedule
from pace_servers.planning.optimize import optimize_servers


@pytest.fixture
def cluster() -> Cluster:
    """Two servers; 1 kB in a millisecond."""
    return Cluster(name="two", exchange=PushPull(servers=2, worker_bytes_per_s=1e6, round_trip_s=1e-4))


def test_whole_tensors_go_in_turn_to_servers(layered: Profile, cluster: Cluster) -> None:
    """Four tensors, first ready first and of two at once the smaller, on servers 0, 1, 0, 1."""
    contender = BY_NAME["servers-fifo-whole"]
    profile = renamed(layered)
    traffic = traffic_of(contender, profile, cluster, 1.0, paced=True)
    schedule = schedule_over_servers(contender, profile, cluster, traffic)
    assert [segment.link // 2 for segment in schedule.of_op("push")] == [0, 1, 0, 1]
    assert [segment.size_bytes for segment in schedule.of_op("push")] == [48, 16, 20, 400]
    assert [segment.priority for segment in schedule.of_op("push")] == [0, 1, 2, 3]
    assert traffic.rules.arrival_pushes
    assert traffic.rules.paced


def test_the_fifo_window_by_hand(layered: Profile, cluster: Cluster) -> None:
    """All gradients are ready after 12 ms; the last has 400 bytes, which two workers push to one server.

    On fast links it is back in 0.8 + 0.1 + 0.8 ms, which the ops of the input hide. On slow ones it is not.
    """
    profile = renamed(layered)
    traffic = traffic_of(BY_NAME["servers-fifo-whole"], profile, cluster, 1.0, paced=False)
    compute = 0.001 + 0.004 + 0.002 + 0.003 + 0.002 + 0.001 + 0.001 + 0.001 + 0.002 + 0.001 + 0.002
    assert predict_over_servers(profile, cluster, traffic) == pytest.approx(compute)
    slow = cluster.model_copy(
        update={"exchange": cluster.exchange.model_copy(update={"worker_bytes_per_s": 1e5})}
    )
    # Both push from 12 ms to 20 and pull from 20.1 to 28.1; then 6 ms of forward from its first use.
    traffic = traffic_of(BY_NAME["servers-fifo-whole"], profile, slow, 1.0, paced=False)
    assert predict_over_servers(profile, slow, traffic) == pytest.approx(0.0281 + 0.006)


def test_the_window_is_that_of_the_slowest(layered: Profile, cluster: Cluster) -> None:
    """Server 1 is beside worker 1, which has the last sum after 16 ms; worker 0 has it after 20.1."""
    profile = renamed(layered)
    beside = {"colocated": True, "worker_bytes_per_s": 1e5}
    colocated = cluster.model_copy(update={"exchange": cluster.exchange.model_copy(update=beside)})
    traffic = traffic_of(BY_NAME["servers-fifo-whole"], profile, colocated, 1.0, paced=False)
    for windows in (1, 3):
        found = predict_over_servers(profile, colocated, traffic, windows=windows)
        assert found == pytest.approx(0.0201 + 0.006)


# What is tuned live has a plan of its own in every trial.
PLANNED = [each for each in OVER_SERVERS if each.name != "servers-bytescheduler-tuned"]


@pytest.mark.parametrize("contender", PLANNED, ids=lambda each: each.name)
def test_every_contender_can_be_run_and_is_predicted(
    layered: Profile, cluster: Cluster, contender: Contender
) -> None:
    """The runtime takes each schedule, segment by segment as simulated; none is predicted below the bound."""
    profile = renamed(layered)
    for paced in (True, False):
        traffic = traffic_of(contender, profile, cluster, 1.0, paced=paced)
        schedule = schedule_over_servers(contender, profile, cluster, traffic)
        sizes = [
            GradientSize(name=gradient.name, size_bytes=gradient.size_bytes, dtype=gradient.dtype)
            for gradient in profile.gradients
        ]
        plan = plan_from_schedule(schedule, sizes, 2, servers=2)
        sent = sorted((segment.size_bytes, segment.link or 0) for segment in plan.segments)
        assert sent == sorted(zip(traffic.sizes.tolist(), traffic.server.tolist(), strict=True))
        bound = optimize_servers(profile, Options(cluster=cluster)).predicted.lower_bound_s
        assert predict_over_servers(profile, cluster, traffic) >= bound * (1 - 1e-9)
    if contender.kind == "pace":
        assert check(profile, schedule) == []


def test_bytescheduler_is_scaled(layered: Profile, cluster: Cluster) -> None:
    """Sizes of 4 and 16 MB shrink with the gradients."""
    traffic = traffic_of(BY_NAME["servers-bytescheduler"], renamed(layered), cluster, 1e-5, paced=False)
    assert traffic.sizes.max() == 40
    assert traffic.rules.credit_bytes == 160


def test_our_parts_are_not_below_what_the_cluster_allows(layered: Profile, cluster: Cluster) -> None:
    """On slow links, 400 bytes go in two parts where 200 may, in one where they may not."""
    contender, profile = BY_NAME["pace-servers"], renamed(layered)
    for least in (200, 300):
        exchange = cluster.exchange.model_copy(
            update={"min_partition_bytes": least, "worker_bytes_per_s": 3e5}
        )
        coarse = cluster.model_copy(update={"exchange": exchange})
        traffic = traffic_of(contender, profile, coarse, 1.0, paced=True)
        schedule = schedule_over_servers(contender, profile, coarse, traffic)
        sizes = [segment.size_bytes for segment in schedule.of_op("push")]
        assert sorted(sizes) == sorted(traffic.sizes.tolist())
        whole = [group.size_bytes for group in schedule.groups]
        assert min(sizes) >= min(least, min(whole))
        assert (len(sizes) > len(whole)) == (least == 200)


def test_layouts_are_read() -> None:
    """Workers, with servers on hosts of their own or together, or with shards."""
    assert parse_layout("4+1") == Layout(4, 1)
    assert parse_layout("4+1").num_hosts == 5
    assert parse_layout("4c") == Layout(4, 4, True)
    assert parse_layout("4c").num_hosts == 4
    assert str(parse_layout("4c")) == "4 colocated"
    assert parse_layout("4") == Layout(4)
    assert parse_layout("2x2") == Layout(4, shards=2)
    assert str(parse_layout("2x2")) == "2 replicas of 2 shards"
    assert parse_layout("2x4") == Layout(8, shards=4)
    for wrong in ("1+1", "4+0", "four", "1", "1x2"):
        with pytest.raises(ValueError):  # noqa: PT011  # int()'s own, or ours: the command says which text it was
            parse_layout(wrong)
