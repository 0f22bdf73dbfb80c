"""Compute that traffic slows down: windows played event by event in wall time, and brute force."""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pace import InvalidProfile, Op, Profile, check, make_policy, optimize, parse_profile
from pace.cli import app
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.options import Options
from pace.documents.profile import DType, Gradient
from pace.documents.profile_json import compact_profile
from pace.models import build
from pace.planning.frameworks.thresholds import megatron_bucket_size
from pace.simulation import POLICIES, run_policy
from pace.solver.compute_clock import ComputeClock
from pace.solver.one_machine import Instance, solve
from pace.view.window import lay_out, lay_out_policy
from pace.whatif import Grid, what_if
from pace.whatif.scenario import profile_at
from tests.strategies import affine, layered, layered_profiles, options, profiles, properties, set_partitions

SLOWDOWNS = st.sampled_from([1.25, 2.0, 3.0])
# Of two events closer than that, the first has come late by rounding.
SAME_MOMENT_S = 1e-12


def played(profile: Profile, transfers: Sequence[tuple[Sequence[str], float]], *, barrier: bool) -> float:
    """Play a window event by event in wall time and return its length.

    Transfers, of some gradients and some seconds each, go out one at a time in this order, none before its
    gradients are ready. An op runs at full speed, or at 1 / slowdown while a transfer is under way.
    """
    left = {op.name: op.duration_s for op in profile.ops}
    graph, names = profile.graph, [op.name for op in profile.ops]
    before = {name: {names[n] for n in graph.predecessors[at]} for at, name in enumerate(names)}
    producer = {gradient.name: gradient.producer for gradient in profile.gradients}
    carried_by = {name: {n for n, (group, _) in enumerate(transfers) if name in group} for name in producer}
    everything = set(producer)
    ended: set[str] = set()
    sent, carrying, now = 0, None, 0.0

    def arrived(name: str) -> bool:
        return producer[name] in ended and all(n < sent for n in carried_by[name])

    def runs(op: Op) -> bool:
        waits = everything if barrier and op.waits_for else op.waits_for
        return op.name not in ended and before[op.name] <= ended and all(map(arrived, waits))

    while True:
        finished = {op.name for op in profile.ops if runs(op) and left[op.name] <= SAME_MOMENT_S}
        if finished:
            ended |= finished
            continue
        if carrying is None and sent < len(transfers):
            group, lasting = transfers[sent]
            carrying = lasting if all(producer[name] in ended for name in group) else None
        if carrying is not None and carrying <= SAME_MOMENT_S:
            sent, carrying = sent + 1, None
            continue
        speed = 1.0 if carrying is None else 1 / profile.compute_slowdown
        running = [op.name for op in profile.ops if runs(op)]
        steps = [left[name] / speed for name in running] + ([] if carrying is None else [carrying])
        if not steps:
            assert (ended, sent) == (set(names), len(transfers)), "the window is over"
            return now
        step = min(steps)
        now += step
        for name in running:
            left[name] -= step * speed
        carrying = None if carrying is None else carrying - step


def wall_of(profile: Profile, groups: Sequence[Sequence[str]], *, barrier: bool = False) -> float:
    """Play a window that sends these groups whole, in this order."""
    size = {gradient.name: gradient.size_bytes for gradient in profile.gradients}
    transfers = [(group, float(profile.cost(sum(size[name] for name in group)))) for group in groups]
    return played(profile, transfers, barrier=barrier)


def test_a_window_worked_out_by_hand() -> None:
    """Two layers of 1 s each way, 2 s for each gradient: a hidden second of traffic costs half a second."""
    profile = layered(
        [4, 4], allreduce=affine(0.0, 0.5), backward_s=[1.0, 1.0], forward_s=[1.0, 1.0]
    ).replace(compute_slowdown=2.0)
    assert profile.cost(4) == 2.0
    # Sent at 1, when backward has 1 s left, which ends at 3; then the other from 3 to 5, and forward waits.
    window = run_policy(profile, make_policy("fifo", barrier=False)).windows[0]
    assert window.starts_s.tolist() == [1.0, 3.0]
    assert window.ends_s.tolist() == [3.0, 5.0]
    assert window.iteration_s == 7.0
    assert optimize(profile).predicted.lower_bound_s == 7.0


@properties(50)
@given(profiles(), SLOWDOWNS, options())
def test_a_schedule_takes_as_long_as_it_says(profile: Profile, slowdown: float, asked: Options) -> None:
    """Segments of every target take, played in wall time, what is predicted; and the checker agrees."""
    profile = profile.replace(compute_slowdown=slowdown)
    schedule = optimize(profile, asked)
    assert check(profile, schedule) == []
    transfers = [
        (schedule.groups[segment.group].tensors, float(profile.cost(segment.size_bytes)))
        for segment in schedule.transfers
    ]
    wall = played(profile, transfers, barrier=schedule.framework is not None)
    assert schedule.predicted.iteration_s == pytest.approx(wall, rel=1e-9)
    assert schedule.predicted.lower_bound_s <= wall * (1 + 1e-9)


@properties(40)
@given(profiles(), SLOWDOWNS, st.sampled_from(["per-gradient", "global-norm"]))
def test_halves_are_right_by_the_independent_checker(profile: Profile, slowdown: float, update: str) -> None:
    """In two halves too, with a norm between them and without."""
    profile = profile.replace(compute_slowdown=slowdown, update=update)
    schedule = optimize(profile, Options(exchange="sharded"))
    assert check(profile, schedule) == []


@properties(40)
@given(layered_profiles(max_layers=4, min_elements=1), SLOWDOWNS)
def test_no_groups_in_any_order_beat_the_bound(profile: Profile, slowdown: float) -> None:
    """Every partition in every order, played in wall time; the schedule is as fast as the best of them."""
    profile = profile.replace(compute_slowdown=slowdown)
    names = [gradient.name for gradient in profile.gradients]
    best = min(
        wall_of(profile, [[names[number] for number in group] for group in order])
        for partition in set_partitions(range(len(names)))
        for order in permutations(partition)
    )
    predicted = optimize(profile).predicted
    assert predicted.lower_bound_s <= best * (1 + 1e-9)
    assert predicted.lower_bound_s <= predicted.ideal_iteration_s * (1 + 1e-9)


@properties(40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, 4)), min_size=1, max_size=3),
    st.sampled_from([1.5, 2.0]),
)
def test_longest_tail_first_stays_optimal(jobs: list[tuple[int, int, int]], slowdown: float) -> None:
    """Against every order of unit pieces in wall time, each at work on its own branch of compute."""
    ops = [Op(name=f"bwd/{n}", duration_s=ready) for n, (ready, _, _) in enumerate(jobs)]
    ops += [Op(name=f"fwd/{n}", duration_s=tail, waits_for=(f"g{n}",)) for n, (_, _, tail) in enumerate(jobs)]
    document = {
        "schema_version": 1,
        "name": "branches",
        "workers": 2,
        "compute_slowdown": slowdown,
        "ops": [op.model_dump(mode="json") for op in ops],
        "gradients": [{"name": f"g{n}", "size_bytes": 4, "producer": f"bwd/{n}"} for n in range(len(jobs))],
        "allreduce": {"kind": "affine", "latency_s": 1.0, "seconds_per_byte": 0.0},
    }
    profile = parse_profile(json.dumps(document))
    pieces = [n for n, (_, pieces, _) in enumerate(jobs) for _ in range(pieces)]
    orders = set(permutations(pieces))
    best = min(played(profile, [((f"g{n}",), 1.0) for n in order], barrier=False) for order in orders)
    ready, processing, tail = (np.array(values, dtype=np.float64) for values in zip(*jobs, strict=True))
    compute_s = profile.timing.compute_s
    clocked = solve(Instance(ready=ready, processing=processing / slowdown, tail=tail))
    ideal = max(compute_s, clocked.objective) + (1 - 1 / slowdown) * processing.sum()
    # Preemption may be finer than pieces of a second.
    assert ideal <= best * (1 + 1e-9)
    parts = zip(clocked.jobs.tolist(), clocked.ends - clocked.starts, strict=True)
    in_order = played(
        profile, [((f"g{job}",), float(lasting) * slowdown) for job, lasting in parts], barrier=False
    )
    assert in_order == pytest.approx(ideal, rel=1e-9)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"horovod"}))
def test_every_policy_takes_as_long_as_its_transfers_say(name: str) -> None:
    """Played again in wall time, in the order in which the simulator sent them."""
    profile = build("vgg16", device_tflops=8.0, batch=64, workers=8).replace(compute_slowdown=1.3)
    window = run_policy(profile, make_policy(name)).windows[0]
    order = np.argsort(window.starts_s, kind="stable").tolist()
    lasting = window.ends_s - window.starts_s
    np.testing.assert_allclose(lasting, window.traffic.duration_s)
    carried: list[list[str]] = [[] for _ in order]
    for gradient, carriers in zip(profile.gradients, window.traffic.carriers, strict=True):
        for transfer in carriers.tolist():
            carried[transfer].append(gradient.name)
    wall = played(profile, [(carried[at], float(lasting[at])) for at in order], barrier=window.barrier)
    slack = 0.0 if name not in ("dear", "sharded", "zero-1", "zero-redundancy") else 1.0
    # First halves carry nothing that is needed by itself, so in order alone they might go before it is ready.
    assert wall <= window.iteration_s * (1 + 1e-9)
    assert wall >= window.iteration_s * (1 - slack - 1e-9)
    plain = run_policy(profile.replace(compute_slowdown=1.0), make_policy(name)).iteration_s
    assert window.iteration_s >= plain * (1 - 1e-9)
    laid_out = lay_out_policy(profile, name)
    assert laid_out.times.ends_s.max() == pytest.approx(laid_out.iteration_s, rel=1e-9)


def test_the_cycles_of_horovod_pass_in_wall_time() -> None:
    """What becomes ready at 1 and, slowed down, at 5 goes out at the next multiples of a cycle of 2 s."""
    profile = layered(
        [4, 4], allreduce=affine(0.0, 0.5), backward_s=[1.0, 3.0], forward_s=[1.0, 1.0]
    ).replace(compute_slowdown=2.0)
    window = run_policy(profile, make_policy("horovod", cycle_s=2.0)).windows[0]
    # Carried from 2 to 4: of the second 3 s of backward, 1 is done at 2, 2 at 4, 3 at 5; sent at 6.
    assert window.starts_s.tolist() == [2.0, 6.0]
    assert window.ends_s.tolist() == [4.0, 8.0]
    assert window.iteration_s == 10.0


def test_a_drawn_schedule_ends_when_it_is_predicted_to() -> None:
    """The ops of charts and timelines are as long as traffic makes them."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8).replace(compute_slowdown=1.4)
    for asked in (Options(), Options(framework="ddp"), Options(exchange="sharded")):
        schedule = optimize(profile, asked)
        window = lay_out(profile, schedule)
        assert window.times.ends_s.max() == pytest.approx(schedule.predicted.iteration_s, rel=1e-9)


def test_a_profile_that_is_not_slowed_down_is_the_profile_of_before() -> None:
    """The field is in no document and in no digest unless it says something, and is refused below 1."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8)
    documents = (profile.to_json(), compact_profile(profile).encode(), optimize(profile).to_json())
    for text in (document.decode() for document in documents):
        assert "slowdown" not in text
        assert "stretch_s" not in text
    slowed = profile.replace(compute_slowdown=1.25)
    assert parse_profile(slowed.to_json()) == slowed
    assert slowed.sha256 != profile.sha256
    assert slowed.fingerprint == profile.fingerprint
    document = json.loads(slowed.to_json()) | {"compute_slowdown": 0.5}
    with pytest.raises(InvalidProfile, match="compute_slowdown"):
        parse_profile(json.dumps(document))


def test_the_two_clocks_translate_into_one_another() -> None:
    """A transfer of 1 s on the compute clock takes 3 s; what is not slowed passes unchanged."""
    clock = ComputeClock.carrying(3.0, np.array([4.0, 1.0]), np.array([4.5, 2.0]))
    compute = np.array([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 6.0])
    wall = np.array([0.0, 1.0, 2.5, 4.0, 5.0, 6.0, 7.5, 9.0])
    np.testing.assert_allclose(clock.wall_s(compute), wall)
    np.testing.assert_allclose(clock.compute_s(wall), compute)


@pytest.mark.parametrize("field", ["bound_s", "stretch_s"])
@pytest.mark.parametrize("proof", ["proofs", "bound"])
def test_the_checker_refuses_a_wrong_stretch(proof: str, field: str) -> None:
    """The proofs of a slowed window are derived anew."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8).replace(compute_slowdown=1.4)
    document = json.loads(optimize(profile).to_json())
    changed = document["proofs"][0] if proof == "proofs" else document[proof]
    changed[field] = changed.get(field, 0.0) + 0.001
    schedule = type(optimize(profile)).model_validate_json(json.dumps(document))
    assert any(proof.removesuffix("s") in violation for violation in check(profile, schedule))


def test_a_proof_of_all_transfers_has_no_stretch_below_zero() -> None:
    """Sums in another order differ in the last bit: the rest of the transfers was less than nothing."""
    sizes: list[tuple[int, DType, str, float]] = [
        (7_080_680, "float64", "a", 0.0),
        (0, "bfloat16", "b", 0.0),
        (0, "float64", "b", 0.9),
        (0, "float64", "b", 0.0),
        (2_463_680, "float32", "a", 0.0),
        (25_768, "bfloat16", "a", 0.0),
        (8, "float64", "a", 0.0),
        (0, "float32", "a", 0.0),
    ]
    profile = Profile(
        name="rounded",
        workers=64,
        ops=tuple(
            Op(name=f"b{number}", duration_s=seconds, stream=stream, deps=("b3",) if number == 4 else ())
            for number, (_, _, stream, seconds) in enumerate(sizes)
        ),
        gradients=tuple(
            Gradient(name=f"g{number}", size_bytes=size, dtype=dtype, producer=f"b{number}")
            for number, (size, dtype, _, _) in enumerate(sizes)
        ),
        allreduce=AffineAllReduce(latency_s=0.1, seconds_per_byte=1e-6),
        compute_slowdown=1.3,
    )
    schedule = optimize(profile)
    assert check(profile, schedule) == []
    assert all(proof.stretch_s >= 0 for proof in schedule.proofs)


def test_what_if_keeps_the_slow_down_on_another_network() -> None:
    """Every cell is the simulator's answer for the slowed profile on that network."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8).replace(compute_slowdown=1.4)
    grid = Grid(bandwidth_gbps=(5.0, 50.0), policies=("ddp", "pace"))
    for cell in what_if(profile, grid, processes=1).cells:
        point = profile_at(profile, cell)
        assert point.compute_slowdown == 1.4
        assert cell.iteration_s == run_policy(point, make_policy(cell.policy)).iteration_s
        plain = run_policy(point.replace(compute_slowdown=1.0), make_policy(cell.policy)).iteration_s
        assert cell.iteration_s >= plain * (1 - 1e-9)


def test_sizes_for_frameworks_are_priced_with_the_slow_down() -> None:
    """Megatron's buckets take, played in wall time behind a barrier, what is said."""
    profile = layered([4, 2, 6, 1], allreduce=affine(0.25, 0.125)).replace(compute_slowdown=2.0)
    best = megatron_bucket_size(profile)
    assert best.iteration_s == pytest.approx(wall_of(profile, best.buckets, barrier=True))


def test_people_are_told_that_compute_is_slowed_down(tmp_path: Path) -> None:
    """On stderr, by the commands that predict; and not where it is not."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8)
    path = tmp_path / "profile.json"
    for slowdown, told in ((1.0, False), (1.25, True)):
        path.write_bytes(profile.replace(compute_slowdown=slowdown).to_json())
        for command in ("optimize", "headroom"):
            done = CliRunner().invoke(app, [command, str(path)])
            assert done.exit_code == 0
            assert ("1.25 times as long during communication" in done.stderr) is told


def test_a_transfer_of_no_time_may_start_together_with_another() -> None:
    """It comes first, in whatever order they are listed."""
    clock = ComputeClock.carrying(2.0, np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0, 1.0]))
    assert clock.wall_s([1.0, 2.0, 3.0]).tolist() == [2.0, 4.0, 5.0]
