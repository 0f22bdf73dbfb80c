"""Schedules of pushes and pulls: worked by hand, judged by the checker, bounded, placed, reproducible."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import InvalidOptions, Profile, check_order, load_profile
from pace.documents.cluster import Cluster
from pace.documents.options import Options
from pace.documents.profile import DType
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Fusion, Schedule, parse_schedule
from pace.errors import InvalidCluster, InvalidSchedule
from pace.kinds import check, optimize
from pace.models import build
from pace.solver.flow_shop.lockstep import send_in_lockstep
from pace.solver.least_bytes import least_loaded
from pace_servers.planning.clusters import cluster_for
from pace_servers.planning.optimize import optimize_servers
from pace_servers.planning.problem import ServersProblem
from tests.pace_servers.planning.clusters import cluster, clusters
from tests.strategies import affine, layered, profiles, properties

FOUR_SERVERS = Cluster(
    name="four servers",
    exchange=PushPull(servers=4, worker_bytes_per_s=1.25e9, partition_s=1e-3, round_trip_s=2e-4),
)
RESNET50 = Path(__file__).parents[5] / "examples" / "profiles" / "resnet50.json"


def three_layers(sizes: tuple[int, int, int], forward_s: float) -> Profile:
    """Return layers 0 to 2 of `sizes` bytes; the last is ready first, a second of backward pass each."""
    return layered(
        list(sizes[::-1]),
        allreduce=affine(0, 1),
        backward_s=[1, 1, 1],
        forward_s=[forward_s] * 3,
        dtypes=["int8"] * 3,
        workers=1,
    )


@pytest.mark.parametrize(("sizes", "forward_s", "best"), [((1, 2, 3), 1, 9), ((1, 4, 8), 4, 19)])
def test_three_layers_reach_their_certificate(
    sizes: tuple[int, int, int], forward_s: float, best: float
) -> None:
    """ByteScheduler's contrived example in parts of one byte: 9 s and 19 s, and proved to be the best."""
    profile = three_layers(sizes, forward_s)
    schedule = optimize_servers(profile, Options(cluster=cluster(), fusion="none", partition_bytes=1))
    assert schedule.predicted.iteration_s == best
    assert schedule.predicted.ideal_iteration_s == best
    assert schedule.bound is not None
    assert schedule.bound.bound_s == best - 1  # a part may be smaller than any byte
    assert check(profile, schedule) == []


@pytest.mark.parametrize("partition_bytes", [None, 1_000_003])
@pytest.mark.parametrize("dtypes", [("float32",), ("float16", "float32")], ids=["one dtype", "two dtypes"])
def test_segments_begin_at_aligned_places(partition_bytes: int | None, dtypes: tuple[DType, ...]) -> None:
    """As with all-reduces: every 16 bytes."""
    one = load_profile(RESNET50)
    gradients = tuple(
        gradient.model_copy(update={"dtype": dtypes[number % len(dtypes)]})
        for number, gradient in enumerate(one.gradients)
    )
    profile = one.replace(gradients=gradients, workers=7)
    schedule = optimize(profile, Options(cluster=FOUR_SERVERS, partition_bytes=partition_bytes))
    assert [each for each in schedule.transfers if each.offset_bytes % 16] == []
    assert check(profile, schedule) == []


def test_no_plan_hangs(tmp_path: Path) -> None:
    """Whatever streams a device runs at once; two iterations are checked."""
    exchange = PushPull(servers=2, colocated=True, worker_bytes_per_s=1e9, min_partition_bytes=1 << 20)
    file = tmp_path / "schedule.json"
    file.write_bytes(optimize(layered([8, 4, 12], allreduce=exchange, workers=2)).to_json())
    for streams in ("side-by-side", "launch-order"):
        report = check_order(file, streams=streams)
        assert report.cannot_hang, report.findings
        assert report.num_operations > 0


def test_an_lp_solver_is_refused() -> None:
    """There are no linear programs; it would be ignored."""
    with pytest.raises(InvalidOptions, match="lp_solver"):
        optimize(load_profile(RESNET50), Options(exchange="servers", lp_solver="pulp"))


@given(data=st.data(), profile=profiles())
@properties(40)
def test_every_schedule_is_accepted(data: st.DataObject, profile: Profile) -> None:
    """Any profile and cluster: valid, no faster than its proofs and bounds, the same bytes again."""
    chosen = data.draw(clusters(profile))
    options = Options(
        cluster=chosen,
        fusion=data.draw(st.sampled_from(["optimal", "paper", "none"])),
        partition_bytes=data.draw(st.sampled_from([None, 1, 16, 1000])),
    )
    schedule = optimize_servers(profile, options)
    assert check(profile, schedule) == []
    predicted = schedule.predicted
    assert predicted.iteration_s >= predicted.ideal_iteration_s * (1 - 1e-9)
    assert predicted.iteration_s >= predicted.lower_bound_s * (1 - 1e-9)
    assert optimize_servers(profile, options).to_json() == schedule.to_json()
    assert parse_schedule(schedule.to_json()) == schedule
    least = chosen.exchange.min_partition_bytes
    for segment in schedule.transfers:
        assert segment.size_bytes >= min(least, schedule.groups[segment.group].size_bytes)


@given(data=st.data(), profile=profiles())
@properties(30)
def test_a_smallest_part_leaves_the_bounds_as_they_are(data: st.DataObject, profile: Profile) -> None:
    """It takes plans away and adds none: what no plan beats, no plan of larger parts beats."""
    chosen = data.draw(clusters(profile))
    bounds = []
    kinds: tuple[Fusion, ...] = ("none", "optimal")  # which bounds do not depend on
    for least, fusion in zip((0, data.draw(st.sampled_from([1, 5, 40, 1000]))), kinds, strict=True):
        exchange = chosen.exchange.model_copy(update={"min_partition_bytes": least})
        schedule = optimize_servers(
            profile, Options(cluster=chosen.model_copy(update={"exchange": exchange}), fusion=fusion)
        )
        assert schedule.predicted.iteration_s >= schedule.predicted.lower_bound_s * (1 - 1e-9)
        bounds.append((schedule.bound, schedule.chain_bound, schedule.predicted.lower_bound_s))
    assert bounds[0] == bounds[1]


@pytest.mark.parametrize(
    ("asked", "least", "sizes", "window"),
    [
        (1, 0, [1, 1, 1, 1, 1], 8),  # in from 1 to 6 s, the last byte back at 7, and a second of forward
        (1, 2, [2, 3], 10),  # 2 and the rest of 1 together: pushed from 3 to 6, pulled to 9
        (2, 2, [2, 3], 10),
        (3, 3, [5], 12),  # 3 would leave 2: pushed to 6, pulled to 11
        (4, 0, [4, 1], 11),  # pulled from 5 to 9 and to 10
        (1, 9, [5], 12),  # all of a gradient may be less
        (None, 3, [5], 12),
    ],
)
def test_the_smallest_part_by_hand(asked: int | None, least: int, sizes: list[int], window: float) -> None:
    """Five bytes over one link of 1 byte/s, ready after a second."""
    profile = layered([5], allreduce=affine(0, 1), backward_s=[1], forward_s=[1], dtypes=["int8"], workers=1)
    chosen = cluster(min_partition_bytes=least)
    schedule = optimize_servers(profile, Options(cluster=chosen, partition_bytes=asked))
    assert sorted(segment.size_bytes for segment in schedule.of_op("push")) == sorted(sizes)
    assert schedule.predicted.iteration_s == window
    assert schedule.predicted.lower_bound_s == 7  # a second, five bytes, a second
    assert schedule.execution.max_segment_bytes == max(sizes)
    if asked is not None:
        assert schedule.solver.partition_bytes == max(asked, least)
    assert check(profile, schedule) == []


def test_elements_are_not_cut_for_the_smallest_part() -> None:
    """Six elements of four bytes, no part below ten: three elements are twelve bytes, two are eight."""
    profile = layered([6], allreduce=affine(0, 1), dtypes=["float32"], workers=1)
    schedule = optimize_servers(profile, Options(cluster=cluster(min_partition_bytes=10), partition_bytes=10))
    assert [segment.size_bytes for segment in schedule.of_op("push")] == [12, 12]


def test_parts_smaller_than_the_cluster_allows_are_refused(judged: tuple[Profile, Schedule]) -> None:
    """Parts of 4 bytes of groups of 4 and more: right for a smallest part of 4, wrong for one of 5."""
    profile, schedule = judged
    document = schedule.model_dump(mode="json")
    assert {segment["size_bytes"] for segment in document["transfers"]} == {4}
    document["cluster"]["exchange"]["min_partition_bytes"] = 4
    assert check(profile, parse_schedule(json.dumps(document))) == []
    document["cluster"]["exchange"]["min_partition_bytes"] = 5
    faults = check(profile, parse_schedule(json.dumps(document)))
    cut = [
        number
        for number, segment in enumerate(schedule.of_op("push"))
        if schedule.groups[segment.group].size_bytes > 4
    ]
    assert len(faults) == len(cut) > 0
    assert all("min_partition_bytes" in fault for fault in faults)


def test_parts_are_spread_evenly_in_the_planned_order() -> None:
    """After every prefix of the order, servers differ by at most the largest segment."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=4)
    schedule = optimize_servers(profile, Options(cluster=cluster_for(profile, servers=4)))
    load = np.zeros(4)
    for segment in sorted(schedule.of_op("push"), key=lambda segment: segment.priority):
        load[segment.link // 2] += segment.size_bytes
        assert load.max() - load.min() <= schedule.execution.max_segment_bytes
    assert load.sum() == sum(gradient.size_bytes for gradient in profile.gradients)


def test_the_size_of_parts_is_searched_around_delta0() -> None:
    """The best size is among the candidates, and no fixed size does better than it."""
    profile = build("vgg16", device_tflops=8.0, batch=32, workers=4)
    servers = cluster_for(profile, servers=4)
    found = optimize_servers(profile, Options(cluster=servers))
    suggested, chosen = found.solver.suggested_partition_bytes, found.solver.partition_bytes
    assert suggested is not None
    assert chosen is not None
    assert 0.24 <= chosen / suggested <= 4.01
    for factor in (0.05, 20.0):
        fixed = Options(cluster=servers, partition_bytes=int(suggested * factor))
        worse = optimize_servers(profile, fixed).predicted.iteration_s
        assert worse > found.predicted.iteration_s


def test_unequal_ratios_change_the_order() -> None:
    """A pushes 4 and pulls 1, B pushes 1 and pulls 4: B goes first, and the window is 7 s, not 9 s."""
    profile = layered(
        [4, 4],
        allreduce=affine(0, 1),
        backward_s=[0, 0],
        forward_s=[1, 0],
        dtypes=["int8", "int8"],
        workers=1,
    )
    needed_last, needed_first = (gradient.name for gradient in profile.gradients)
    ratios = {needed_first: (1.0, 0.25), needed_last: (0.25, 1.0)}
    chosen = cluster(ratios=ratios)
    schedule = optimize_servers(profile, Options(cluster=chosen, partition_bytes=4))
    assert schedule.predicted.iteration_s == 7
    assert schedule.solver.order in ("johnson", "insertion")
    assert schedule.chain_bound is None
    assert check(profile, schedule) == []


def whole_windows(profile: Profile, chosen: Cluster) -> Iterator[float]:
    """Yield the window of each order of each grouping, sent whole, up to four gradients with bytes."""
    problem = ServersProblem.of(profile, chosen)
    plain = problem.plain
    sent = [int(number) for number in np.flatnonzero(plain.sizes)]
    if not sent:
        return
    for labels in {
        labels
        for labels in product(range(len(sent)), repeat=len(sent))
        if set(labels) == {*range(max(labels) + 1)}
    }:
        groups = [[sent[at] for at, label in enumerate(labels) if label == k] for k in range(max(labels) + 1)]
        if any(len({int(plain.dtypes[number]) for number in group}) > 1 for group in groups):
            continue
        sizes = np.array([plain.sizes[group].sum() for group in groups])
        times = send_in_lockstep(
            problem.links,
            ready=np.array([plain.ready[group].max() for group in groups]),
            sizes=np.array([problem.push_bytes[group].sum() for group in groups]),
            pull_sizes=np.array([problem.pull_bytes[group].sum() for group in groups]),
            server=least_loaded(sizes, problem.links.num_servers),
        )
        tails = np.array([plain.tail[group].max() for group in groups])
        yield max(plain.compute_s, float((times.pull_ends + tails).max()))


@given(data=st.data(), profile=profiles(max_gradients=4))
@properties(40)
def test_no_order_of_whole_groups_is_faster(data: st.DataObject, profile: Profile) -> None:
    """Every order of every grouping of up to four gradients, at any ratios, tried one by one."""
    chosen = data.draw(clusters(profile))
    schedule = optimize_servers(profile, Options(cluster=chosen))
    assert check(profile, schedule) == []
    plain = min(whole_windows(profile, chosen), default=np.inf)
    assert schedule.predicted.iteration_s <= plain * (1 + 1e-6)


def test_a_cluster_that_does_not_fit_is_refused() -> None:
    """Too many servers for the hosts; a ratio of nothing."""
    profile = three_layers((1, 2, 3), 1)
    with pytest.raises(InvalidCluster, match="do not fit"):
        optimize_servers(profile, Options(cluster=cluster(5, colocated=True)))
    with pytest.raises(InvalidCluster, match="no gradient"):
        optimize_servers(profile, Options(cluster=cluster(ratios={"nobody": (1, 1)})))


@pytest.fixture(scope="module")
def judged() -> tuple[Profile, Schedule]:
    """A profile and its schedule on two servers, to be corrupted."""
    profile = three_layers((4, 8, 16), 2)
    chosen = cluster(2, partition_s=0.125, round_trip_s=0.25)
    schedule = optimize_servers(profile, Options(cluster=chosen, partition_bytes=4))
    assert check(profile, schedule) == []
    return profile, schedule


CORRUPTIONS: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "another profile": (("profile_sha256",), "0" * 64),
    "ready too early": (("groups", 0, "ready_s"), 0.5),
    "tail too short": (("groups", 0, "tail_s"), 0.0),
    "a push to another server": (("transfers", 0, "link"), 2),
    "a pull from another server": (("transfers", 1, "link"), 3),
    "a pull without its push": (("transfers", 0, "op"), "pull"),
    "a pull of other bytes": (("transfers", 1, "offset_bytes"), 4),
    "pushed too early": (("transfers", 0, "start_s"), 0.0),
    "pushed too fast": (("transfers", 0, "end_s"), 1.5),
    "pulled before the round trip": (("transfers", 1, "start_s"), 1.0),
    "pulled too fast": (("transfers", -1, "end_s"), -0.5),
    "faster": (("predicted", "iteration_s"), -1.0),
    "a better ideal": (("predicted", "ideal_iteration_s"), 1.0),
    "a higher bound": (("predicted", "lower_bound_s"), 1.0),
    "a gap": (("predicted", "gap"), 0.1),
    "a proof with too many bytes": (("proofs", 0, "total_s"), 1.0),
    "a proof that proves more": (("proofs", 1, "bound_s"), 1.0),
    "a proof with too many segments": (("proofs", 0, "num_transfers"), 1000),
    "a proof with too few segments": (("proofs", 0, "num_transfers"), 1),
    "a bound with too few gradients": (("bound", "num_gradients"), 0),
    "a bound with too many bytes": (("bound", "total_bytes"), 1000.0),
    "a bound with a slower link": (("bound", "seconds_per_byte"), 1.0),
    "a bound with a longer round trip": (("bound", "round_trip_s"), 1.0),
    "a chain with a slower link": (("chain_bound", "seconds_per_byte"), 1.0),
    "a chain that proves more": (("chain_bound", "bound_s"), 1.0),
    "segments larger than said": (("execution", "max_segment_bytes"), 1),
    "two in flight": (("execution", "max_in_flight"), 2),
    "other servers": (("cluster", "exchange", "worker_bytes_per_s"), 2.0),
    "a byte twice": (("transfers", 0, "offset_bytes"), 4),
    "two places": (("transfers", 0, "priority"), 1),
    "a pace of a byte in a second": (("execution", "connection_bytes_per_s"), 1.0),
    "no such server": (("transfers", 0, "link"), 9),
    "links of other servers": (("links",), ["up 0", "down 0"]),
    "another version": (("schema_version",), 2),
}
ADDED = (
    {name for name, (path, _) in CORRUPTIONS.items() if path[-1] == "bound_s"}
    | {"pulled too fast"}
    | {
        "faster",
        "a better ideal",
        "a higher bound",
        "a gap",
        "a proof with too many bytes",
        "a bound with a slower link",
        "a bound with a longer round trip",
        "a chain with a slower link",
    }
)


@pytest.mark.parametrize("corruption", sorted(CORRUPTIONS))
def test_corruptions_are_found(judged: tuple[Profile, Schedule], corruption: str) -> None:
    """Every way in which the document can be wrong is refused by its own rules or by the checker."""
    profile, schedule = judged
    path, value = CORRUPTIONS[corruption]
    document = schedule.model_dump(mode="json")
    inner: Any = document
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = inner[path[-1]] + value if corruption in ADDED else value
    try:
        violations = check(profile, parse_schedule(json.dumps(document)))
    except InvalidSchedule as error:
        violations = [str(error)]
    assert violations, corruption


def test_reversed_priorities_are_refused(judged: tuple[Profile, Schedule]) -> None:
    """What the runtime would send in another order than the stated times have is no right schedule."""
    profile, schedule = judged
    document = schedule.model_dump(mode="json")
    last = max(transfer["priority"] for transfer in document["transfers"])
    for transfer in document["transfers"]:
        transfer["priority"] = last - transfer["priority"]
    found = check(profile, parse_schedule(json.dumps(document)))
    assert any("of a smaller priority, waits for the same connection" in violation for violation in found)


def test_a_network_is_read_off_the_profile() -> None:
    """A ring's link, an affine cost read as a ring's; what is given wins."""
    profile = layered([8], allreduce=affine(0.5, 1.5), workers=4)
    servers = cluster_for(profile, servers=2).exchange
    assert servers.worker_bytes_per_s == 1.0  # 2 (W - 1) / W over 1.5
    assert servers.round_trip_s == pytest.approx(2 * 0.5 / 6)
    given = cluster_for(profile, servers=2, worker_bytes_per_s=5.0, round_trip_s=0.25).exchange
    assert (given.worker_bytes_per_s, given.round_trip_s) == (5.0, 0.25)


def test_a_segment_on_the_connection_of_another_is_found(judged: tuple[Profile, Schedule]) -> None:
    """A push and its pull moved to the other server together: two messages share a connection."""
    profile, schedule = judged
    document = schedule.model_dump(mode="json")
    for transfer in document["transfers"][:2]:
        transfer["link"] = (transfer["link"] + 2) % 4
    assert check(profile, parse_schedule(json.dumps(document)))


def test_two_pushes_over_one_connection_of_colocated_servers_are_found() -> None:
    """A push that starts before the one ahead of it on its connection has ended is refused."""
    profile = layered([4, 8, 16], allreduce=affine(0, 1), dtypes=["int8"] * 3, workers=2)
    chosen = Options(cluster=cluster(2, colocated=True), partition_bytes=4)
    schedule = optimize_servers(profile, chosen)
    assert check(profile, schedule) == []
    document = schedule.model_dump(mode="json")
    pushes = [each for each in document["transfers"] if each["op"] == "push" and each["link"] == 0]
    pushes.sort(key=lambda each: each["start_s"])
    pushes[1]["start_s"] = pushes[0]["start_s"]
    found = check(profile, parse_schedule(json.dumps(document)))
    assert any("its connection still carries another" in violation for violation in found)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition_s": 1e17}, "take 2e.17 s, at most"),
        ({"bytes_per_s": 1e-320}, "take inf s, at most"),
    ],
)
def test_clusters_whose_times_cannot_be_added_are_refused(fields: dict[str, Any], message: str) -> None:
    """In a line that names the cluster, instead of failing inside the solver."""
    with pytest.raises(InvalidCluster, match=f'cluster "[^"]*": .*{message}'):
        optimize_servers(three_layers((4, 4, 4), 1.0), Options(cluster=cluster(**fields)))


@pytest.mark.parametrize("model", ["resnet50", "transformer"])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_no_given_size_of_partitions_is_much_faster(model: str, servers: int) -> None:
    """The window is a jagged function of the size; the sizes given here are 6 % apart."""
    profile = load_profile(f"examples/profiles/{model}.json")
    chosen = cluster(servers, bytes_per_s=1.25e9, partition_s=1e-3, round_trip_s=2e-4)
    schedule = optimize_servers(profile, Options(cluster=chosen))
    assert check(profile, schedule) == []
    for size in np.geomspace(1e6, 16e6, 48).astype(int).tolist():
        given_size = optimize_servers(profile, Options(cluster=chosen, partition_bytes=size))
        assert schedule.predicted.iteration_s <= given_size.predicted.iteration_s * 1.015, size


def test_many_servers_do_not_multiply_the_parts() -> None:
    """The plan is valid with fewer parts than servers; too small parts are refused with the size to use."""
    profile = three_layers((400_000, 400_000, 400_000), 1.0).replace(workers=4)
    many = cluster_for(profile, servers=100_000, worker_bytes_per_s=1e9)
    plan = optimize_servers(profile, Options(cluster=many))
    assert len(plan.transfers) < 20_000
    assert check(profile, plan) == []
    with pytest.raises(InvalidOptions, match="segments for 100,000 servers: use at least "):
        optimize_servers(profile, Options(cluster=many, partition_bytes=4))
