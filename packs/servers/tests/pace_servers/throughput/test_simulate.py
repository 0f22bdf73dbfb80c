"""The simulation of asynchronous training: worked instances, its exact twin, and what always holds."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.documents.steps import LinkDiscipline, StepLink, StepsDocument, StepsOp, StepTimes
from pace.errors import InvalidOptions
from pace_servers.documents.fleet import Fleet
from pace_servers.throughput.graph import StepGraph
from pace_servers.throughput.orders import deviates_of, priorities_of, spreads_of
from pace_servers.throughput.simulate import simulate_steps
from tests.pace.documents.step_documents import (
    EIGHTHS,
    MB,
    document,
    pull_compute_push,
    steps_documents,
)
from tests.pace_servers.throughput.steps_twin import Twin
from tests.strategies import properties


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw a fleet: half of them differ from the recorded worker in nothing but the barrier."""
    fields: dict[str, Any] = {}
    barrier = draw(st.sampled_from(["none", "none", "all", "quorum", "staleness"]))
    fields["barrier"] = barrier
    if barrier == "quorum":
        fields |= {"quorum": draw(st.integers(1, 3)), "late": draw(st.sampled_from(["count", "drop"]))}
    if barrier == "staleness":
        fields["max_ahead"] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        rates = st.lists(st.integers(1, 4).map(float), max_size=3).map(tuple)
        fields["speed"] = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), max_size=3).map(tuple))
        fields["download_bytes_per_s"], fields["upload_bytes_per_s"] = draw(rates), draw(rates)
        fields["server_bytes_per_s"] = draw(rates)
        fields["join_s"] = draw(st.lists(EIGHTHS, max_size=2).map(tuple))
        if draw(st.booleans()):
            fields["leave_s"] = (None, draw(st.integers(13, 40)) / 8, None)
    fields["pull_every"], fields["push_every"] = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Fleet(**fields)


def first_step(steps: StepsDocument) -> dict[str, float]:
    """Return when each op of a lone worker's first step ends."""
    run = simulate_steps(steps, 1, steps=1, skip=0, num_recorded=1)
    return dict(zip((op.name for op in steps.ops), run.op_end_s[0, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("discipline", "late", "ends"),
    [
        ("window", False, {"A": 14, "B": 5, "C": 15, "D": 9, "E": 19}),
        ("window", True, {"A": 14, "B": 5, "C": 15, "D": 9, "E": 21, "F": 17}),
        ("first-service-first", True, {"A": 16, "B": 5, "C": 17, "D": 9, "E": 21, "F": 14}),
    ],
)
def test_a_window_preempts_a_stream_once(
    discipline: LinkDiscipline, late: bool, ends: dict[str, float]
) -> None:
    """Test A: five streams in windows of 3 bytes, and one more that comes at 10 s."""
    ops: list[tuple[object, ...]] = [
        (name, "downlink", size) for name, size in zip("ABCDE", (5, 2, 4, 1, 7), strict=True)
    ]
    if late:
        ops += [("wait", "worker", None), ("F", "downlink", 2, ("wait",))]
    steps = document(ops, [[0] * 5 + [10, 0] * late], 1, window_bytes=3, discipline=discipline)
    found = first_step(steps)
    assert {name: found[name] for name in ends} == ends


def test_two_workers_in_lock_step_stay_so() -> None:
    """Test B: 3.5 s alone, 5.5 s for two that start together, 3.5 s again for two a second apart."""
    steps = pull_compute_push()
    assert simulate_steps(steps, 1, steps=20, skip=4).step_s(0) == pytest.approx(3.5)
    together = simulate_steps(steps, 2, steps=20, skip=4)
    assert together.step_s(1) == pytest.approx(5.5)
    assert together.steps_per_s == pytest.approx(2 / 5.5)
    apart = simulate_steps(steps, 2, fleet=Fleet(join_s=(0, 1)), steps=200, skip=4)
    assert apart.step_s(1) == pytest.approx(3.5)
    assert apart.steps_per_s == pytest.approx(2 / 3.5, rel=0.01)


def test_a_link_is_shared_while_both_use_it() -> None:
    """Test C: 4 and 8 MB at 4 MB/s end after 2 and 3 s."""
    ops = (("down", "downlink", 4 * MB), ("more", "downlink", 4 * MB, ("down",)))
    steps = document(ops, [[0, 0]], 4 * MB)
    # The second worker's 8 MB are two transfers, one after the other; the first leaves after its first.
    run = simulate_steps(steps, 2, fleet=Fleet(leave_s=(2.0, None)), steps=1, skip=0, num_recorded=1)
    assert run.op_end_s[:, 0, 0].tolist() == [2.0, 2.0]
    assert run.op_end_s[1, 0, 1] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("first", "window", "workers", "makespan"),
    [
        ("c0", None, 1, 10.1),
        ("c1", None, 1, 11.1),
        ("c0", 4 * MB, 1, 10.1),
        ("c0", None, 2, 18.1),
        ("c0", None, 3, 26.1),
    ],
)
def test_order_and_overlap(first: str, window: int | None, workers: int, makespan: float) -> None:
    """Test E: two layers at 2 MB/s; which one is pulled first matters, and workers share the link."""
    pulls = {"c0": ("c0", "downlink", 2 * MB), "c1": ("c1", "downlink", 6 * MB)}
    ops = [
        pulls.pop(first),
        *pulls.values(),
        ("f0", "worker", None, ("c0",)),
        ("f1", "worker", None, ("f0", "c1")),
        ("b1", "worker", None, ("f1",)),
        ("b0", "worker", None, ("b1",)),
        ("u1", "uplink", 6 * MB, ("b1",)),
        ("u0", "uplink", 2 * MB, ("b0",)),
        ("update1", "ps", None, ("u1",)),
        ("update0", "ps", None, ("u0",)),
    ]
    durations = [[0, 0, 1, 1, 1, 1, 0, 0, 0.1, 0.1]]
    steps = document(
        ops, durations, 2 * MB, window_bytes=window, discipline="fifo" if window is None else "window"
    )
    run = simulate_steps(steps, workers, steps=1, skip=0, num_recorded=1)
    assert run.end_s[-1] == pytest.approx(makespan, abs=1e-9)
    if window:
        assert first_step(steps)["u0"] == pytest.approx(9)
        assert first_step(steps)["u1"] == pytest.approx(10)


@properties(60)
@given(steps_documents(), fleets(), st.integers(1, 4), st.integers(1, 3), st.data())
def test_equal_to_the_exact_twin(
    steps: StepsDocument, fleet: Fleet, workers: int, count: int, data: st.DataObject
) -> None:
    """The same steps end at the same times, with the same staleness, as in exact arithmetic."""
    row = st.lists(st.integers(0, len(steps.steps) - 1), min_size=count, max_size=count)
    drawn = data.draw(st.lists(row, min_size=workers, max_size=workers))
    spread = data.draw(st.sampled_from([None, 0.0, 0.5]))
    reference = data.draw(st.sampled_from([None, 3])) if spread is not None else None
    shared = {"share_spread": spread, "share_spread_bytes": reference}
    steps = steps.replace(link=steps.link.model_copy(update=shared))
    run = simulate_steps(steps, workers, fleet=fleet, steps=count, skip=0, drawn=drawn, num_recorded=2)
    priority = priorities_of(steps, StepGraph.of(steps), 0)[0].tolist()
    twin = Twin(
        steps,
        workers,
        fleet,
        drawn,
        steps=count,
        priority=priority,
        deviates=deviates_of(steps, workers, 0).tolist(),
        spreads=spreads_of(steps).tolist(),
    ).run()
    assert run.worker.tolist() == [worker for _, worker, _, _ in twin.ends]
    assert run.end_s == pytest.approx([float(end) for end, *_ in twin.ends], rel=0, abs=1e-9)
    assert run.staleness.tolist() == [staleness for _, _, staleness, _ in twin.ends]
    assert run.kept.tolist() == [kept for *_, kept in twin.ends]
    for (worker, step, op), end in twin.op_ends.items():
        if step < 2:
            assert run.op_end_s[worker, step, op] == pytest.approx(float(end), rel=0, abs=1e-9)


@properties(40)
@given(steps_documents(), st.integers(1, 4), st.integers(2, 5), st.integers(0, 3))
def test_bytes_are_conserved_and_bound_the_rate(
    steps: StepsDocument, workers: int, count: int, seed: int
) -> None:
    """Each link carries the bytes of each step, and never more than its rate allows."""
    run = simulate_steps(steps, workers, steps=count, skip=0, seed=seed)
    down, up = steps.bytes_of("downlink"), steps.bytes_of("uplink")
    assert run.total_bytes == pytest.approx(np.tile([*down, *up], (workers, 1)) * count, abs=1e-6)
    for sent in (*down, *up):
        assert workers * count * sent <= steps.link.bytes_per_s * run.end_s[-1] * (1 + 1e-9)


def test_unequal_shares_lead_workers_out_of_step() -> None:
    """Steps that never vary: with equal shares two stay in step for ever, with unequal ones they do not."""
    steps = pull_compute_push()
    rates = []
    for spread in (None, 0.05):
        link = steps.link.model_copy(update={"share_spread": spread})
        rates.append(simulate_steps(steps.replace(link=link), 2, steps=400, skip=200).steps_per_s)
    assert rates[0] == pytest.approx(2 / 5.5, rel=1e-6)
    assert rates[1] > 1.1 * rates[0]


def test_small_transfers_share_more_unequally_than_large_ones() -> None:
    """A share is a sum of packets: a hundredth of the bytes vary ten times as much, none beyond 0.3."""
    ops = [
        StepsOp(name=f"d{at}", resource="downlink", size_bytes=size)
        for at, size in enumerate((3_000_000, 30_000, 100))
    ]
    link = StepLink(bytes_per_s=1e6, share_spread=0.005, share_spread_bytes=3_000_000)
    steps = StepsDocument(name="sizes", ops=tuple(ops), steps=(StepTimes(duration_s=(0.0,) * 3),), link=link)
    assert spreads_of(steps) == pytest.approx([0.005, 0.05, 0.3])


def test_spread_by_size_decides_when_small_transfers_part() -> None:
    """Small transfers leave lock-step sooner if a spread was measured with large ones."""
    steps = pull_compute_push()
    size = int(steps.bytes_of("downlink")[0])
    rates = []
    for reference in (size, 10**4 * size):
        link = {"share_spread": 1e-4, "share_spread_bytes": reference}
        steps = steps.replace(link=steps.link.model_copy(update=link))
        rates.append(simulate_steps(steps, 2, steps=60, skip=20).steps_per_s)
    assert rates[1] > 1.05 * rates[0]


def test_same_seed_same_run() -> None:
    """A seed decides which steps are drawn; another draws others."""
    durations = [[0, compute, 0, 0.5] for compute in (0.5, 1.0, 2.5)]
    base = pull_compute_push()
    steps = base.replace(
        steps=tuple(base.steps[0].model_copy(update={"duration_s": tuple(t)}) for t in durations)
    )
    runs = [simulate_steps(steps, 3, steps=60, skip=5, seed=seed).end_s.tobytes() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_staleness_of_identical_workers(workers: int) -> None:
    """Workers that pull as soon as a step starts miss one update of each other worker, on average."""
    run = simulate_steps(pull_compute_push(), workers, steps=200, skip=20)
    assert run.measured_staleness.mean() == pytest.approx(workers - 1, abs=0.02)


def test_pulls_and_pushes_of_some_steps_only() -> None:
    """With a pull and a push every 4 steps, the link is used in one step of four."""
    fleet = Fleet(pull_every=4, push_every=4)
    run = simulate_steps(pull_compute_push(update_s=0.0), 1, fleet=fleet, steps=8, skip=0)
    assert run.end_s.tolist() == [2, 3, 4, 6, 8, 9, 10, 12]
    assert run.staleness.tolist() == [-1, -1, -1, 0] * 2
    assert run.total_bytes.tolist() == [[20 * MB, 20 * MB]]


def test_a_quorum_ends_rounds_without_the_slow() -> None:
    """Two fast clients make rounds of their own; what the slow one ends after its round is dropped."""
    steps = pull_compute_push(update_s=0.0)
    fast = (100.0 * MB,)
    fleet = Fleet(speed=(1, 1, 0.1), barrier="quorum", quorum=2, late="drop", server_bytes_per_s=fast)
    run = simulate_steps(steps, 3, fleet=fleet, steps=10, skip=0)
    of_slow = run.kept[run.worker == 2]
    assert len(of_slow) >= 1
    assert not of_slow.any()
    assert run.kept[run.worker != 2].all()
    assert run.step_s(0) == pytest.approx(3.0)
    counting = fleet.model_copy(update={"late": "count"})
    assert simulate_steps(steps, 3, fleet=counting, steps=10, skip=0).kept.all()


@pytest.mark.parametrize(("max_ahead", "faster"), [(0, 1.0), (3, 1.0)])
def test_a_staleness_bound_holds_the_fast_back(max_ahead: int, faster: float) -> None:
    """In the long run the fast worker does as many steps as the slow one."""
    fleet = Fleet(speed=(4, 1), barrier="staleness", max_ahead=max_ahead)
    run = simulate_steps(pull_compute_push(), 2, fleet=fleet, steps=60, skip=10)
    done = np.cumsum(run.worker == 0) - np.cumsum(run.worker == 1)
    assert done.max() <= max_ahead + 1
    assert np.mean(run.worker == 0) == pytest.approx(0.5 * faster, abs=0.03)


def test_joins_and_leaves_change_the_rate() -> None:
    """The link's other half is free again when a worker has left."""
    steps = pull_compute_push()
    fleet = Fleet(join_s=(0.0, 35.0), leave_s=(None, 70.0))
    run = simulate_steps(steps, 2, fleet=fleet, steps=20, skip=0)
    lone = run.end_s[run.worker == 0]
    assert lone[:10] == pytest.approx(3.5 * np.arange(1, 11))
    assert np.diff(lone[-5:]) == pytest.approx(3.5)
    assert np.diff(lone[(lone > 35) & (lone < 70)]).mean() > 3.9
    assert run.end_s[run.worker == 1].max() < 70


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": 0}, "0 workers"),
        ({"steps": 5, "skip": 5}, "5 steps of which 5"),
        ({"drawn": [[7]]}, "names steps up to 7"),
        ({"drawn": [[0], [0]]}, "shape"),
        ({"workers": 10_000, "steps": 10_000_000}, "at most"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, object], complaint: str) -> None:
    """One line says which number and what was expected."""
    arguments: dict[str, object] = {"workers": 1, "steps": 10, "skip": 1} | options
    with pytest.raises(InvalidOptions, match=complaint):
        simulate_steps(pull_compute_push(), **arguments)  # type: ignore[arg-type]  # one of them is wrong


@pytest.mark.parametrize("barrier", ["none", "all"])
def test_late_steps_are_only_dropped_where_rounds_end(barrier: Literal["none", "all"]) -> None:
    """Without a quorum no step is late, and "drop" would mean nothing."""
    with pytest.raises(InvalidOptions, match='late "drop" needs barrier "quorum"'):
        Fleet(barrier=barrier, late="drop")
