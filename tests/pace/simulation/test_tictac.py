"""TicTac's orders and metrics: worked by hand, against transcriptions, on the paper's toy models."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.papers.tictac_orders import toy_worker
from pace import InvalidProfile
from pace.models import build
from pace.simulation.tictac import (
    TransferDag,
    fastest,
    makespan_limits,
    ordering_efficiency,
    ordering_speedup,
    properties,
    tao,
    tio,
)
from pace.simulation.worker import (
    WorkerDag,
    parameter_server_worker,
    run_worker,
)
from pace.solver.cost_curve import CostCurve
from tests.strategies import eighths
from tests.strategies import properties as examples

INF = math.inf


def dag_of(transfer_s: list[float], ops: list[tuple[float, set[int]]]) -> TransferDag:
    """Return the DAG of transfers and of (duration, transfers waited for)."""
    return TransferDag(
        transfer_s=np.array(transfer_s),
        op_s=np.array([seconds for seconds, _ in ops]),
        waits=np.array(
            [[transfer in waits for transfer in range(len(transfer_s))] for _, waits in ops], dtype=bool
        ).reshape(len(ops), len(transfer_s)),
    )


# The example of the paper's Figure 1: op1 waits for recv1 and recv2... here worked with three transfers.
# op a (4 s) waits for 0 alone, op b (1 s) for 0 and 1, op c (2 s) for all of 0, 1, 2.
WORKED = dag_of([2.0, 1.0, 3.0], [(4.0, {0}), (1.0, {0, 1}), (2.0, {0, 1, 2})])


def test_properties_worked_by_hand() -> None:
    """P counts what one outstanding transfer alone holds up, M+ the least sum of those with company."""
    found = properties(WORKED, np.array([True, True, True]))
    assert found.unlocked_s.tolist() == [4.0, 0.0, 0.0]
    assert found.impending_s.tolist() == [3.0, 3.0, 6.0]
    without_first = properties(WORKED, np.array([False, True, True]))
    assert without_first.unlocked_s.tolist() == [0.0, 1.0, 0.0]
    assert without_first.impending_s.tolist() == [INF, 4.0, 4.0]


def test_the_time_oracle_is_the_minimum_over_runs() -> None:
    """Each op has its shortest duration of any run; runs of another job are refused."""
    one = build("alexnet", device_tflops=8.0, batch=32, workers=2)
    slower = one.replace(
        ops=tuple(
            op.model_copy(update={"duration_s": op.duration_s * (3 if at % 2 else 0.5)})
            for at, op in enumerate(one.ops)
        )
    )
    found = fastest([one, slower])
    assert [op.duration_s for op in found.ops] == [
        op.duration_s * (1 if at % 2 else 0.5) for at, op in enumerate(one.ops)
    ]
    with pytest.raises(InvalidProfile, match="run 2 has other ops"):
        fastest([one, build("vgg16", device_tflops=8.0, batch=32, workers=2)])
    with pytest.raises(InvalidProfile, match="no runs"):
        fastest([])


def test_orders_worked_by_hand() -> None:
    """TIO counts transfers, TAO weighs them."""
    assert tio(WORKED).tolist() == [2.0, 2.0, 3.0]
    # 0 unlocks 4 s while 1 and 2 unlock nothing; then 1 unlocks 1 s.
    assert tao(WORKED).tolist() == [0.0, 1.0, 2.0]
    # A short transfer that unlocks much overtakes a long one that unlocks as much.
    assert tao(dag_of([5.0, 1.0], [(3.0, {0}), (3.0, {1})])).tolist() == [1.0, 0.0]
    # Equal by the first rule (nothing unlocks anything): the least impending communication first.
    tied = dag_of([1.0, 1.0, 1.0, 1.0], [(1.0, {0, 1, 3}), (1.0, {1, 2})])
    assert tao(tied).tolist()[1] == 0.0


def test_of_several_channels_the_busiest_counts() -> None:
    """Transfers 0 and 1 share a channel, 2 has its own: op c waits 3 s for either channel."""
    apart = replace(WORKED, channels=np.array([0, 0, 1]))
    found = properties(apart, np.array([True, True, True]))
    assert found.unlocked_s.tolist() == [4.0, 0.0, 0.0]
    assert found.impending_s.tolist() == [3.0, 3.0, 3.0]
    assert tio(apart).tolist() == [2.0, 2.0, 2.0]
    tied = dag_of([1.0, 2.0, 3.0, 3.0], [(1.0, {0, 1}), (1.0, {2, 3})])
    assert tao(tied).tolist()[:2] == [0.0, 1.0]
    # Each of 2 and 3 now has a channel of its own, so that M+ is 3 for all, and the shortest goes first.
    assert tao(replace(tied, channels=np.array([0, 0, 1, 2]))).tolist()[:2] == [0.0, 1.0]


def is_published(dag: TransferDag, order: list[int]) -> bool:
    """Say whether each step of Algorithms 1 and 2, transcribed with Python sets, allows this order.

    A step takes a transfer that the comparator puts before all others. Where the comparator goes round in a
    circle there is none, and the step takes one that equation 5 puts behind no other, with the smallest M+.
    """
    time = dag.transfer_s.tolist()
    deps = [set(np.flatnonzero(row).tolist()) for row in dag.waits]
    channels = dag.channel_numbers.tolist()
    left = set(range(len(time)))
    for taken in order:
        p = dict.fromkeys(left, 0.0)
        m_plus = dict.fromkeys(left, INF)
        for op, dep in enumerate(deps):
            d = dep & left
            m = max((sum(time[r] for r in d if channels[r] == c) for c in set(channels)), default=0.0)
            if len(d) == 1:
                for r in d:
                    p[r] += float(dag.op_s[op])
            if len(d) > 1:
                for r in d:
                    m_plus[r] = min(m_plus[r], m)

        def by_equation_5(a: int, b: int, p: dict[int, float] = p) -> float:
            return float(min(p[b], time[a]) - min(p[a], time[b]))

        def precedes(a: int, b: int, m_plus: dict[int, float] = m_plus) -> bool:
            difference = by_equation_5(a, b)
            return difference < 0 or (difference == 0 and m_plus[a] < m_plus[b])

        firsts = {a for a in left if not any(precedes(b, a) for b in left)}
        if not firsts:
            open_ones = {a for a in left if not any(by_equation_5(b, a) < 0 for b in left)}
            least = min(m_plus[a] for a in open_ones)
            firsts = {a for a in open_ones if m_plus[a] == least}
        if taken not in firsts:
            return False
        left.remove(taken)
    return True


@st.composite
def dags(draw: st.DrawFn) -> TransferDag:
    """Draw a DAG of up to six transfers."""
    transfers = draw(st.lists(eighths(2), max_size=6))
    several = st.sets(st.integers(0, len(transfers) - 1)) if transfers else st.just(set[int]())
    dag = dag_of(transfers, draw(st.lists(st.tuples(eighths(2), several), max_size=7)))
    channels = [draw(st.integers(0, 2)) for _ in transfers]
    return replace(dag, channels=np.array(channels, dtype=np.int64)) if draw(st.booleans()) else dag


@examples(300)
@given(dag=dags())
def test_orders_are_the_published_ones(dag: TransferDag) -> None:
    """TIO is Algorithm 3 and TAO Algorithms 1 and 2, transcribed."""
    assert is_published(dag, np.argsort(tao(dag)).tolist())
    deps = [set(np.flatnonzero(row).tolist()) for row in dag.waits]
    channels = dag.channel_numbers

    def busiest(dep: set[int]) -> int:
        return int(np.bincount(channels[sorted(dep)]).max())

    expected = [
        min((busiest(dep) for dep in deps if transfer in dep and len(dep) > 1), default=INF)
        for transfer in range(len(dag.transfer_s))
    ]
    assert tio(dag).tolist() == expected


def renumbered(dag: TransferDag, order: list[int]) -> TransferDag:
    """Return the same DAG whose transfer `number` was `order[number]`."""
    channels = None if dag.channels is None else dag.channels[order]
    return replace(dag, transfer_s=dag.transfer_s[order], waits=dag.waits[:, order], channels=channels)


def one_device(dag: TransferDag) -> WorkerDag:
    """Return a worker with one device for the ops of a DAG, which wait for its transfers alone."""
    transfers, ops = len(dag.transfer_s), len(dag.op_s)
    return WorkerDag(
        names=tuple(map(str, range(transfers + ops))),
        duration_s=np.concatenate([dag.transfer_s, dag.op_s]),
        resources=np.array([1] * transfers + [0] * ops, dtype=np.int64),
        predecessors=(*[()] * transfers, *(tuple(np.flatnonzero(row).tolist()) for row in dag.waits)),
        recvs=tuple(range(transfers)),
    )


def test_ties_do_not_depend_on_the_numbering() -> None:
    """Transfers of 2, 1 and 2 s, ops of 1 s on {0, 1} and of 4 s on {1, 2}: 8 s, not 9 in one numbering."""
    dag = dag_of([2.0, 1.0, 2.0], [(1.0, {0, 1}), (4.0, {1, 2})])
    for order in permutations(range(3)):
        numbered = renumbered(dag, list(order))
        assert run_worker(one_device(numbered), tao(numbered)).makespan_s == 8.0
    worker = one_device(dag)
    assert run_worker(worker, np.array([0.0, 1.0, 2.0])).makespan_s == 9.0


def test_ties_that_only_the_graph_decides() -> None:
    """Four equal transfers, two for an op of 1 s and two for one of 3 s: those of the longer op go first.

    Where 3 s wait for each of the four, half a second of it for 0 and 1 alone, but 2.5 s for 2 and 3 alone,
    makespans of 8.5 and 8 s are possible: which one does not depend on the numbering.
    """
    pairs = dag_of([1.0] * 4, [(1.0, {0, 1}), (3.0, {2, 3})])
    split = dag_of([1.0] * 5, [(0.5, {0, 1}), (2.5, {0, 1, 4}), (2.5, {2, 3}), (0.5, {2, 3, 4})])
    for dag, makespans in ((pairs, {6.0}), (split, None)):
        runs = set()
        for order in permutations(range(len(dag.transfer_s))):
            numbered = renumbered(dag, list(order))
            runs.add(run_worker(one_device(numbered), tao(numbered)).makespan_s)
        assert len(runs) == 1
        assert makespans in (None, runs)


@examples(300)
@given(dag=dags(), seed=st.integers(0, 1000))
def test_the_order_does_not_depend_on_the_numbering(dag: TransferDag, seed: int) -> None:
    """Renumbered transfers go in the same order, up to exchanges that the graph allows: equal makespans."""
    order = np.random.default_rng(seed).permutation(len(dag.transfer_s)).tolist()
    other = renumbered(dag, order)
    first, second = tao(dag), tao(other)
    assert dag.transfer_s[np.argsort(first)].tolist() == other.transfer_s[np.argsort(second)].tolist()
    alone, again = one_device(dag), one_device(other)
    assert run_worker(alone, first).makespan_s == run_worker(again, second).makespan_s


def test_the_printed_comparator_goes_round_in_a_circle() -> None:
    """(P, M, M+) = (1, 1, 5), (2, 1, 6), (1, 2, 4): each before the next, and the last before the first."""

    def precedes(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        first, second = min(b[0], a[1]), min(a[0], b[1])
        return first < second or (first == second and a[2] < b[2])

    a, b, c = (1, 1, 5), (2, 1, 6), (1, 2, 4)
    assert precedes(a, b)
    assert precedes(b, c)
    assert precedes(c, a)


@st.composite
def workers(draw: st.DrawFn) -> tuple[WorkerDag, list[float]]:
    """Draw a worker with one to three resources, and ranks for its recv ops."""
    count = draw(st.integers(1, 9))
    predecessors: list[tuple[int, ...]] = []
    for op in range(count):
        before = draw(st.sets(st.integers(0, op - 1), max_size=2)) if op else set[int]()
        predecessors.append(tuple(sorted(before)))
    recvs = tuple(op for op in range(count) if not predecessors[op])
    dag = WorkerDag(
        names=tuple(map(str, range(count))),
        duration_s=np.array([draw(eighths(2)) for _ in range(count)]),
        resources=np.array([draw(st.integers(0, 2)) for _ in range(count)], dtype=np.int64),
        predecessors=tuple(predecessors),
        recvs=recvs,
    )
    return dag, [float(rank) for rank in draw(st.permutations(range(len(recvs))))]


def run_as_list(dag: WorkerDag, priority: list[float]) -> list[float]:
    """Return start times from a plain search for the next op that may start, moment by moment."""
    rank = {op: (float(op), op) for op in range(len(dag.names))}
    rank |= {op: (priority[at], op) for at, op in enumerate(dag.recvs)}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    now = 0.0
    while len(starts) < len(dag.names):
        for resource in set(dag.resources.tolist()):
            busy = any(ends[op] > now for op in starts if dag.resources[op] == resource)
            released = [
                op
                for op in range(len(dag.names))
                if op not in starts
                and dag.resources[op] == resource
                and all(before in ends and ends[before] <= now for before in dag.predecessors[op])
            ]
            if released and not busy:
                op = min(released, key=lambda op: rank[op])
                starts[op], ends[op] = now, now + float(dag.duration_s[op])
                break
        else:
            now = min(end for end in ends.values() if end > now)
    return [starts[op] for op in range(len(dag.names))]


@examples(200)
@given(drawn=workers())
def test_a_worker_runs_as_the_plain_search_says(drawn: tuple[WorkerDag, list[float]]) -> None:
    """Every op's start; ops of no duration are left out of the draw where ties would reorder them."""
    dag, priority = drawn
    positive = np.maximum(dag.duration_s, 0.125)
    dag = WorkerDag(
        names=dag.names,
        duration_s=positive,
        resources=dag.resources,
        predecessors=dag.predecessors,
        recvs=dag.recvs,
    )
    assert run_worker(dag, np.array(priority)).starts_s.tolist() == run_as_list(dag, priority)


def test_efficiency_worked_by_hand() -> None:
    """Compute 6 s, two channels of 3 and 2 s: U = 11, L = 6; a makespan of 8 gives E = 3/5."""
    assert ordering_efficiency([6.0, 3.0, 2.0], 8.0) == pytest.approx(0.6)
    assert ordering_efficiency([6.0], 6.0) == 1.0


def test_the_speedup_that_an_order_can_give() -> None:
    """Equation 4 of compute of 6 s and channels of 3 and 2 s: U = 11 and L = 6, so that S = 5/6."""
    assert makespan_limits([6.0, 3.0, 2.0]) == (11.0, 6.0)
    assert ordering_speedup([6.0, 3.0, 2.0]) == pytest.approx(5 / 6)
    assert ordering_speedup([4.0, 4.0]) == 1.0
    assert ordering_speedup([4.0]) == ordering_speedup([]) == 0.0


def test_every_order_of_the_parallel_model_is_equal() -> None:
    """Par-32: whichever transfer comes first unlocks as much; 2,000 random orders have one makespan, 33 s."""
    dag = toy_worker(32, chain=False)
    random = np.random.default_rng(1)
    runs = [run_worker(dag, random.permutation(32).astype(float)) for _ in range(2000)]
    assert {run.makespan_s for run in runs} == {33.0}
    assert {run.efficiency for run in runs} == {(64 - 33) / 32}
    six = toy_worker(6, chain=False)
    assert {run_worker(six, np.array(o, dtype=float)).makespan_s for o in permutations(range(6))} == {7.0}


def test_one_order_of_the_sequential_model_is_best() -> None:
    """Seq-n: of all n! orders exactly one is best, by enumeration for 6.

    For 32 the best makespan is 33 s, and exchanging any two transfers already makes it longer.
    """
    six = [
        run_worker(toy_worker(6, chain=True), np.array(order, dtype=float))
        for order in permutations(range(6))
    ]
    makespans = sorted(run.makespan_s for run in six)
    assert makespans[0] == 7.0 < makespans[1]
    dag = toy_worker(32, chain=True)
    best = run_worker(dag, np.arange(32.0))
    assert best.makespan_s == 33.0
    assert best.efficiency == (64 - 33) / 32
    for first in range(32):
        for second in range(first + 1, 32):
            swapped = np.arange(32.0)
            swapped[[first, second]] = swapped[[second, first]]
            assert run_worker(dag, swapped).makespan_s > 33.0
    random = np.random.default_rng(1)
    assert all(run_worker(dag, random.permutation(32).astype(float)).makespan_s > 33.0 for _ in range(2000))


@pytest.mark.parametrize("order", [tio, tao])
def test_both_orders_find_the_best_of_the_sequential_model(order: object) -> None:
    """The one best of 32!."""
    dag = toy_worker(32, chain=True)
    assert callable(order)
    assert run_worker(dag, order(dag.transfers)).makespan_s == 33.0


def test_a_parameter_servers_worker() -> None:
    """Recv ops wait for nothing, nothing waits for send ops, each parameter moves once each way."""
    profile = build("vgg16", device_tflops=8.0, batch=64, workers=4)
    dag = parameter_server_worker(profile, servers=2, transfer=CostCurve.affine(1e-4, 1e-9))
    count = len(profile.gradients)
    waited_for = {before for several in dag.predecessors for before in several}
    sends = [op for op, name in enumerate(dag.names) if name.startswith("send/")]
    assert all(dag.predecessors[op] == () for op in dag.recvs)
    assert len(sends) == count == len(dag.recvs)
    assert not waited_for & set(sends)
    assert set(dag.recvs) <= waited_for
    assert len(dag.names) == len(profile.ops) + 2 * count
    # In on channels 1 and 2, out on 3 and 4, of the same server.
    assert (dag.resources[sends] == dag.resources[list(dag.recvs)] + 2).all()
    orders = {"tio": tio(dag.transfers), "tao": tao(dag.transfers)}
    runs = {name: run_worker(dag, priority) for name, priority in orders.items()}
    random = np.random.default_rng(1)
    unordered = [run_worker(dag, random.permutation(count).astype(float)).makespan_s for _ in range(50)]
    for run in runs.values():
        assert run.efficiency <= 1 + 1e-9
        assert run.makespan_s <= min(unordered)
        for op, before in enumerate(dag.predecessors):
            assert all(run.starts_s[op] >= run.ends_s[other] for other in before)


def test_ops_must_come_in_order() -> None:
    """An op before what it waits for is refused by name."""
    with pytest.raises(InvalidProfile, match='op "a" comes before'):
        WorkerDag(
            names=("a", "b"),
            duration_s=np.ones(2),
            resources=np.zeros(2, dtype=np.int64),
            predecessors=((1,), ()),
            recvs=(1,),
        )
