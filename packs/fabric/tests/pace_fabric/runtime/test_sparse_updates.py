"""Updates of some rows of a model: added, cut and sent as they are, and committed as if they were whole."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.errors import InvalidUse
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.runtime.byte_store import ByteStore
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.client_answers import UpdateTicket
from pace_fabric.runtime.commit_log import add_scaled, factors_of_steps, replay
from pace_fabric.runtime.messages import AdditionOrder
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.shards import shard_range
from pace_fabric.runtime.sparse_update import SparseUpdate, add_sparse, join_sparse
from tests.pace_fabric.runtime.processes import Fabric

ROWS, WIDTH = 500, 16


def test_rows_of_a_table() -> None:
    """Row 2 comes twice and is added; the table begins at place 1 of 10 numbers."""
    update = SparseUpdate.of_rows(
        np.array([2, 0, 2]), np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32), numbers=10, first=1
    )
    assert update.dense().tolist() == [0, 3, 4, 0, 0, 6, 8, 0, 0, 0]
    assert len(update.to_bytes()) == 16 + 2 * 12 + 4 * 4


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 60))
def test_sparse_is_as_dense(seed: int, members: int, numbers: int) -> None:
    """Sums, cuts, joins and the way over the wire give what the whole vectors give, bit by bit."""
    random = np.random.default_rng(seed)
    vectors = [
        (random.normal(size=numbers) * (random.random(numbers) < 0.3)).astype(np.float32)
        for _ in range(members)
    ]
    factors = random.choice([1.0, 0.5, -1.7], members).tolist()
    parts = [SparseUpdate.from_bytes(SparseUpdate.of_vector(vector).to_bytes()) for vector in vectors]
    assert all(np.array_equal(part.dense(), vector) for part, vector in zip(parts, vectors, strict=True))
    whole, total = add_scaled([vector.copy() for vector in vectors], factors), add_sparse(parts, factors)
    assert np.array_equal(total.dense(), whole)
    first, last = sorted(random.integers(0, numbers + 1, 2).tolist())
    assert np.array_equal(total.cut(first, last).dense(), whole[first:last])
    assert np.array_equal(join_sparse(total, parts[0]).dense(), np.concatenate([whole, vectors[0]]))


def test_sums_that_keep_steps_apart_are_sparse_too() -> None:
    """With momentum a sum is two vectors; where they are no smaller than whole ones, they are whole."""
    random, store = np.random.default_rng(8), ByteStore()
    vectors = [(random.normal(size=200) * (random.random(200) < 0.1)).astype(np.float32) for _ in range(3)]
    for number, vector in enumerate(vectors):
        store.own(f"u/{number}", SparseUpdate.of_vector(vector).to_bytes(), 0, "sparse")
    keys, factors = tuple(f"u/{number}" for number in range(3)), (1.0, 2.0, 0.5)
    store.add(AdditionOrder(key="s", parts=keys, factors=factors, momentum=0.5))
    moved, kept = factors_of_steps(factors, 0.5)
    both = np.concatenate([add_scaled([v.copy() for v in vectors], each) for each in (moved, kept)])
    found = store.get("s")
    assert found is not None
    assert (found.form == "sparse") == (len(SparseUpdate.of_vector(both).to_bytes()) < both.nbytes)
    assert np.array_equal(store.vector("s"), both)


@pytest.mark.parametrize(
    ("starts", "lengths", "numbers"),
    [([0, 1], [2, 1], 3), ([2], [2], 3), ([-1], [2], 3), ([0], [0], 3), ([2, 0], [1, 1], 3), ([0], [1], 3)],
)
def test_runs_that_are_none_are_refused(starts: list[int], lengths: list[int], numbers: int) -> None:
    """Runs that overlap, do not ascend, leave the model, are empty, or have too few numbers."""
    values = np.ones(max(sum(lengths), 2), dtype=np.float32)
    with pytest.raises(InvalidUse):
        SparseUpdate(numbers, np.array(starts), np.array(lengths), values)
    with pytest.raises(InvalidUse):
        SparseUpdate.from_bytes(bytes(15))
    with pytest.raises(InvalidUse):
        SparseUpdate.from_bytes(np.array([10, 1 << 40], dtype="<u8").tobytes())


def _push(fabric: Fabric, client: FabricClient, random: np.random.Generator) -> UpdateTicket:
    rows = random.choice(ROWS, 5, replace=False)
    values = random.normal(size=(5, WIDTH)).astype(np.float32)
    update = SparseUpdate.of_rows(rows, values, numbers=ROWS * WIDTH)
    ticket = client.push(update, 0)
    fabric.updates[ticket.update] = update.dense()
    return ticket


@pytest.mark.parametrize("replica", [True, False])
def test_rows_reach_the_model_and_its_replica(tmp_path: Path, replica: bool) -> None:
    """Six workers push five rows each: the model is what the log gives, for a fraction of a model's bytes."""
    options = SchedulerOptions(
        delay_bound=7,
        divergence=DivergenceLimit(kind="updates", max=2) if replica else None,
        tick_s=0.02,
    )
    numbers, random = ROWS * WIDTH, np.random.default_rng(5)
    with Fabric(tmp_path, 6, options, without_server=True, numbers=numbers, replica=replica) as fabric:
        tickets = [_push(fabric, fabric.client(number), random) for number in range(6)]
        fabric.wait(lambda status: status["pending"] == 6)
        fabric.start("server")
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 6
        model = fabric.clients[0].get(at_least=6)
        assert np.array_equal(model.weights, fabric.replayed(fabric.log()))
        status = fabric.status()
        received = status["hosts"]["server"]["received_bytes"]
        assert 0 < received <= status["planned_server_bytes"]
        assert received < 0.2 * 4 * numbers
        if replica:
            fabric.wait(lambda status: status["replica_applied"] == 6)
            assert np.allclose(fabric.replayed(fabric.log("replica")), model.weights, rtol=0, atol=1e-6)


def test_rows_are_cut_where_servers_share_a_model(tmp_path: Path) -> None:
    """Three servers, whose parts end within rows: each commits its part of every row."""
    options = SchedulerOptions(delay_bound=7, servers=3, tick_s=0.02)
    numbers, random = ROWS * WIDTH, np.random.default_rng(6)
    with Fabric(tmp_path, 4, options, without_server=True, numbers=numbers) as fabric:
        tickets = [_push(fabric, fabric.client(number), random) for number in range(4)]
        fabric.wait(lambda status: status["pending"] == 4)
        for server in fabric.servers:
            fabric.start(server)
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 4
        model = fabric.clients[0].get(at_least=4)
        parts = []
        for shard, server in enumerate(fabric.servers):
            first, last = shard_range(numbers, shard, 3)

            def update(name: str, first: int = first, last: int = last) -> np.ndarray:
                return fabric.updates[name][first:last]

            parts.append(replay(fabric.first[first:last], fabric.log(server), update)[0])
        assert np.array_equal(np.concatenate(parts), model.weights)


def test_a_malformed_or_reduced_sparse_update_is_refused(tmp_path: Path) -> None:
    """One of another model is not committed, and the fabric goes on; an all-reduce says what to give."""
    with Fabric(tmp_path, 1, SchedulerOptions(tick_s=0.02), numbers=ROWS * WIDTH) as fabric:
        client = fabric.client(0)
        small = SparseUpdate.of_vector(np.ones(4, dtype=np.float32))
        with pytest.raises(InvalidUse, match=r"dense\(\)"):
            client.all_reduce(small, members=1)  # type: ignore[arg-type]  # what a caller may try
        assert _push(fabric, client, np.random.default_rng(7)).wait().outcome == "committed"
        assert client.push(small, 1).wait().outcome != "committed"
        assert np.array_equal(client.get(at_least=1).weights, fabric.replayed(fabric.log()))
