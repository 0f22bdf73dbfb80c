"""Rows on one server: torch's optimizers, first values, which rows are kept, and checkpoints."""

import copy
import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.profiler import Capture
from pace.wire.frames import Frame, FrameKind, WireFault
from pace_servers.embedding import (
    EmbeddingTables,
    KeptRows,
    LazyAdam,
    RowAdagrad,
    RowSGD,
    RowWiseAdagrad,
    ShardedEmbedding,
)
from pace_servers.runtime.options import ParameterServers
from pace_servers.runtime.server import Server
from pace_servers.runtime.tables.initial_rows import initial_rows
from pace_servers.runtime.tables.row_optimizers import RowOptimizer
from pace_servers.runtime.tables.row_table import RowTable, TableSpec
from pace_servers.runtime.tables.served_tables import ServedTables
from pace_servers.runtime.tables.table_messages import TableWord, pack_look_up, pack_push
from tests.runtime.capture.captures import ALLREDUCE
from tests.runtime.logs import captured_events

ROWS, WIDTH = 50, 4


def table_of(
    optimizer: RowOptimizer | None = None, kept: KeptRows | None = None, most_bytes: int = 1 << 20
) -> RowTable:
    """Return a table of 50 rows that one server has whole."""
    spec = TableSpec(
        name="items",
        num_rows=ROWS,
        width=WIDTH,
        optimizer=optimizer or RowSGD(lr=0.5),
        initialization="normal",
        scale=1.0,
        seed=3,
        kept=kept or KeptRows(),
        staleness=0,
        average=True,
        restore=None,
    )
    return RowTable(spec, 0, 1, most_bytes=most_bytes)


def update(table: RowTable, *keys: int) -> None:
    """Update rows by gradients of one."""
    table.update(np.array(keys), np.ones((len(keys), WIDTH), dtype=np.float32))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (RowSGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (RowAdagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
        (LazyAdam(lr=0.01), lambda p: torch.optim.SparseAdam(p, lr=0.01)),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's own optimizers
def test_optimizers_are_torchs_own(mine: RowOptimizer, theirs: Any) -> None:
    """Ten steps of changing rows: torch's optimizer on a sparse gradient gives the same table."""
    table, every = table_of(mine), np.arange(ROWS)
    weight = torch.nn.Parameter(torch.from_numpy(table.look_up(every)))
    optimizer = theirs([weight])
    random = np.random.default_rng(1)
    for _ in range(10):
        keys = np.sort(random.choice(ROWS, 7, replace=False))
        gradients = random.normal(size=(7, WIDTH)).astype(np.float32)
        table.update(keys, gradients)
        weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(keys)[None], torch.from_numpy(gradients), (ROWS, WIDTH), check_invariants=True
        )
        optimizer.step()
    assert np.abs(table.look_up(every) - weight.detach().numpy()).max() < 2e-6
    assert table.num_stored < ROWS


def test_row_wise_adagrad_by_hand() -> None:
    """Squares 1, 9, 1, 1 have the mean 3; after the same again the sum is 6."""
    table = table_of(RowWiseAdagrad(lr=1.0, eps=0.0))
    before = table.look_up(np.array([7]))
    gradient = np.array([[1, 3, -1, 1]], dtype=np.float32)
    table.update(np.array([7]), gradient)
    table.update(np.array([7]), gradient)
    expected = before - gradient / np.sqrt(3) - gradient / np.sqrt(6)
    assert table.look_up(np.array([7])) == pytest.approx(expected, abs=1e-5)


def test_first_values_are_of_the_key_alone() -> None:
    """A row's values do not depend on the others that are asked for; mean 0 and deviation 2."""
    many = initial_rows(np.arange(20_000), 8, kind="normal", scale=2.0, seed=1)
    assert (initial_rows(np.array([19_999, 3]), 8, kind="normal", scale=2.0, seed=1) == many[[-1, 3]]).all()
    assert abs(many.mean()) < 0.03
    assert many.std() == pytest.approx(2.0, rel=0.01)
    assert abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.03
    assert not np.array_equal(many, initial_rows(np.arange(20_000), 8, kind="normal", scale=2.0, seed=2))
    even = initial_rows(np.arange(20_000), 8, kind="uniform", scale=0.5, seed=1)
    assert even.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.01)
    assert np.abs(even).max() <= 0.5


def test_a_key_is_admitted_with_its_third_update() -> None:
    """Before, its gradients are dropped and its row keeps its first values."""
    table = table_of(kept=KeptRows(min_count=3))
    first = table.look_up(np.array([5]))
    for _ in range(2):
        update(table, 5)
        assert (table.look_up(np.array([5])) == first).all()
        assert table.num_stored == 0
    update(table, 5)
    assert (table.look_up(np.array([5])) == first - np.float32(0.5)).all()


def test_old_rows_are_given_up() -> None:
    """A row without an update for more than four steps has its first values again; a used one stays."""
    table = table_of(kept=KeptRows(most_age_steps=4))
    first = table.look_up(np.array([1, 2]))
    update(table, 1, 2)
    for _ in range(5):
        update(table, 2)
    assert (table.look_up(np.array([1])) == first[:1]).all()
    assert (table.look_up(np.array([2])) == first[1:] - np.float32(3)).all()
    assert table.num_stored == 1


def test_the_least_used_row_makes_room() -> None:
    """Three rows at most: the one with one update goes, and what comes fourth takes its place."""
    table = table_of(kept=KeptRows(most_rows=3))
    first = table.look_up(np.array([1, 2, 3, 4]))
    update(table, 1, 2, 3)
    update(table, 1, 3)
    update(table, 4)
    expected = first - np.array([[1.0], [0.0], [1.0], [0.5]], dtype=np.float32)
    assert table.look_up(np.array([1, 2, 3, 4])) == pytest.approx(expected)
    update(table, *range(10, 20))  # more at once than there is room for: three of them
    assert table.num_stored == 3


def test_a_table_that_may_not_fit_is_refused() -> None:
    """The message says what it needs and what to do."""
    with pytest.raises(InvalidOptions, match=r"most_rows=\.\.\."):
        table_of(most_bytes=1000)


def test_a_rank_waits_for_the_slowest_as_far_as_its_staleness_allows() -> None:
    """With a staleness of 1, rows for a rank's third step come when the other has pushed its first."""
    spec = replace(table_of().spec, staleness=1)
    served = ServedTables(2, most_bytes=1 << 20, folder=None)
    none, no_rows = np.zeros(0, dtype=np.int64), np.zeros((0, WIDTH), dtype=np.float32)

    def say(rank: int, word: TableWord, message: bytes | memoryview) -> list[int]:
        frame = Frame(FrameKind.TABLE, segment=int(word), round=7)
        return [answer.rank for answer in served.take(rank, frame, bytearray(message))]

    for rank in range(2):
        say(rank, TableWord.OPEN, b"0 1\n" + spec.document)
    for clock in range(2):
        assert say(0, TableWord.LOOK_UP, pack_look_up(clock, np.array([1]))) == [0]
        assert say(0, TableWord.PUSH, pack_push(clock, none, no_rows)) == []
    assert say(0, TableWord.LOOK_UP, pack_look_up(2, np.array([1]))) == []
    assert say(1, TableWord.PUSH, pack_push(0, none, no_rows)) == [0]
    with pytest.raises(WireFault, match="update 0 where 1 is due"):
        say(1, TableWord.PUSH, pack_push(0, none, no_rows))
    with pytest.raises(WireFault, match="key 50 of a table with 50 keys"):
        say(1, TableWord.LOOK_UP, pack_look_up(1, np.array([50])))


def train(tables: EmbeddingTables, table: ShardedEmbedding, steps: range) -> torch.Tensor:
    """Take steps on bags of three, and return all rows."""
    for step in steps:
        bags = torch.randint(0, ROWS, (4, 3), generator=torch.Generator().manual_seed(step))
        table(bags).square().sum().backward()
        tables.step()
    return table.look_up(torch.arange(ROWS))


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Six steps are three, a checkpoint, other servers, and three: to the bit, state of Adam included."""

    def begun(restore: str | None, servers: list[Server]) -> tuple[EmbeddingTables, ShardedEmbedding]:
        over = ParameterServers(servers=[server.address for server in servers])
        tables = EmbeddingTables(over, restore=restore, timeout_s=20)
        return tables, ShardedEmbedding(ROWS, WIDTH, tables=tables, optimizer=LazyAdam(lr=0.1), name="items")

    with Server(checkpoints=tmp_path / "a") as a, Server(checkpoints=tmp_path / "b") as b:
        tables, table = begun(None, [a, b])
        with tables:
            train(tables, table, range(3))
            tables.save("third")
            whole = train(tables, table, range(3, 6))
    with Server(checkpoints=tmp_path / "a") as a, Server(checkpoints=tmp_path / "b") as b:
        tables, table = begun("third", [a, b])
        with tables:
            assert torch.equal(train(tables, table, range(3, 6)), whole)
            with pytest.raises(InvalidUse, match="names no file"):
                tables.save("../third")
        for name, servers in (("fourth", [a, b]), ("third", [b, a]), ("third", [a])):
            over = ParameterServers(servers=[server.address for server in servers])
            with (
                EmbeddingTables(over, restore=name, timeout_s=20) as tables,
                pytest.raises(InvalidUse, match="no checkpoint"),
            ):
                ShardedEmbedding(ROWS, WIDTH, tables=tables, optimizer=LazyAdam(lr=0.1), name="items")


def test_a_bag_is_torchs_bag() -> None:
    """Offsets, weights of samples, padding, an empty batch and each mode: as torch has them."""
    with Server() as server:
        tables = EmbeddingTables(ParameterServers(servers=[server.address]), timeout_s=20)
        with tables:
            for mode in ("sum", "mean", "max"):
                mine = ShardedEmbedding(
                    ROWS, WIDTH, tables=tables, optimizer=RowSGD(lr=1.0), mode=mode, padding_idx=2
                )
                plain = torch.nn.EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=2)
                with torch.no_grad():
                    plain.weight.copy_(mine.initial_rows(torch.arange(ROWS)))
                flat, offsets = torch.tensor([4, 2, 4, 9, 1]), torch.tensor([0, 3, 3])
                weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0]) if mode == "sum" else None
                found, expected = mine(flat, offsets, weights), plain(flat, offsets, weights)
                assert torch.allclose(found, expected)
                found.square().sum().backward()
                expected.square().sum().backward()
                tables.step()
                assert plain.weight.grad is not None
                moved = plain.weight.detach() - plain.weight.grad
                assert torch.allclose(mine.look_up(torch.arange(ROWS)), moved, atol=1e-6)
                empty = torch.zeros(0, dtype=torch.int64)
                assert torch.equal(mine(empty, torch.tensor([0])), torch.zeros(1, WIDTH))
                with pytest.raises(IndexError, match="index 50 of 50 rows"):
                    mine(torch.tensor([[50]]))
                tables.step()


def test_colocated_servers_are_refused() -> None:
    """The message says what to start."""
    with pytest.raises(InvalidOptions, match="pace servers serve"):
        EmbeddingTables(ParameterServers(servers="colocated"))


def test_a_damaged_or_mixed_checkpoint_is_refused(tmp_path: Path) -> None:
    """A file that was cut short, and files of two saves under one name."""

    def saved(folder: str) -> None:
        with Server(checkpoints=tmp_path / folder) as server:
            over = ParameterServers(servers=[server.address])
            with EmbeddingTables(over, timeout_s=20) as tables:
                for name in ("a", "b"):
                    ShardedEmbedding(ROWS, WIDTH, tables=tables, optimizer=RowSGD(lr=0.1), name=name)
                tables.save("last")

    def restored() -> None:
        with Server(checkpoints=tmp_path / "one") as server:
            over = ParameterServers(servers=[server.address])
            with EmbeddingTables(over, restore="last", timeout_s=20) as tables:
                for name in ("a", "b"):
                    ShardedEmbedding(ROWS, WIDTH, tables=tables, optimizer=RowSGD(lr=0.1), name=name)

    saved("one")
    saved("two")
    restored()
    file = tmp_path / "one/last/b.1-of-1.npz"
    file.write_bytes((tmp_path / "two/last/b.1-of-1.npz").read_bytes())
    with pytest.raises(InvalidUse, match="a save has not reached all"):
        restored()
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(InvalidUse, match="is damaged"):
        restored()


@pytest.fixture
def alone() -> Iterator[EmbeddingTables]:
    """Tables of one rank on one server."""
    with (
        Server() as server,
        EmbeddingTables(ParameterServers(servers=[server.address]), timeout_s=20) as tables,
    ):
        yield tables


def test_rows_asked_for_ahead_are_never_of_another_step(alone: EmbeddingTables) -> None:
    """Between prefetch and use: no step while one was expected, and a step while none was."""
    table = ShardedEmbedding(ROWS, WIDTH, tables=alone, optimizer=RowSGD(lr=1.0), mode="sum")
    bag, first = torch.tensor([[3]]), table.initial_rows(torch.tensor([3]))
    out = table(bag)
    table.prefetch(bag)  # with the coming step; but a second part of the batch comes first
    assert torch.equal(table(bag), first)
    out.sum().backward()
    alone.step()
    table.prefetch(bag)  # without a step
    (table.look_up(bag[0]) * 0).sum()
    alone.step()
    assert torch.equal(table(bag), first - 1)
    table(bag).sum().backward()
    table.prefetch(bag)
    alone.step()
    assert torch.equal(table(bag), first - 2)


def test_parts_of_a_batch_add_up_and_passes_without_backward_leave_nothing(alone: EmbeddingTables) -> None:
    """Two parts and one of them twice, of int32 keys and offsets; then an empty batch."""
    table = ShardedEmbedding(ROWS, WIDTH, tables=alone, optimizer=RowSGD(lr=1.0), mode="sum")
    first = table.initial_rows(torch.tensor([3]))
    keys, offsets = torch.tensor([3, 4, 3], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    table(keys, offsets).sum().backward()
    out = table(keys[:1], offsets[:1]).sum()
    out.backward(retain_graph=True)
    out.backward()
    unused = weakref.ref(table(torch.tensor([[7]])))
    assert unused() is None
    assert alone.gradient_norm() == pytest.approx(math.sqrt(WIDTH * (4**2 + 1)))
    alone.step()
    assert torch.equal(table.look_up(torch.tensor([3])), first - 4)
    empty = table(torch.zeros(0, 2, dtype=torch.int64), None)
    assert empty.shape == (0, WIDTH)
    empty.sum().backward()
    assert alone.gradient_norm() == 0.0


def test_a_step_with_scaled_or_infinite_gradients(alone: EmbeddingTables) -> None:
    """A scaled loss is scaled back; a step with an infinite gradient changes nothing."""
    table = ShardedEmbedding(ROWS, WIDTH, tables=alone, optimizer=LazyAdam(lr=1.0), mode="sum")
    bag, first = torch.tensor([[3]]), table.initial_rows(torch.tensor([3]))
    (table(bag).sum() * math.inf).backward()
    assert alone.step(grad_scale=1 / 1024) is False
    assert torch.equal(table(bag), first)
    (table(bag).sum() * 1024).backward()
    assert alone.gradient_norm() == 2048
    assert alone.step(grad_scale=1 / 1024) is True
    assert torch.allclose(table(bag), first - 1, atol=1e-6)
    with pytest.raises(ValueError, match="grad_scale"):
        alone.step(grad_scale=-1)


def test_weights_of_samples_get_gradients(alone: EmbeddingTables) -> None:
    """As torch's bag gives them, with offsets that end with the number of keys."""
    table = ShardedEmbedding(
        ROWS, WIDTH, tables=alone, optimizer=RowSGD(lr=1.0), mode="sum", include_last_offset=True
    )
    plain = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", include_last_offset=True)
    with torch.no_grad():
        plain.weight.copy_(table.initial_rows(torch.arange(ROWS)))
    flat, offsets = torch.tensor([4, 4, 9]), torch.tensor([0, 2, 2, 3])
    found = []
    for each in (table, plain):
        weights = torch.tensor([1.0, 2.0, 0.5], requires_grad=True)
        each(flat, offsets, weights).square().sum().backward()
        assert weights.grad is not None
        found.append(weights.grad)
    assert torch.allclose(found[0], found[1])


def test_tables_are_neither_copied_nor_used_in_a_forked_process(alone: EmbeddingTables) -> None:
    """The message says what to do; the process that forked goes on."""
    table = ShardedEmbedding(ROWS, WIDTH, tables=alone, optimizer=RowSGD(lr=1.0))
    assert not table.state_dict()
    with pytest.raises(InvalidUse, match="state_dict"):
        copy.deepcopy(torch.nn.Sequential(table))
    child = os.fork()
    if child == 0:
        try:
            alone.close()
            table.look_up(torch.tensor([1]))
        except InvalidUse:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    table.look_up(torch.tensor([1]))


def test_a_profile_says_which_tables_on_servers_it_leaves_out() -> None:
    """Their rows are no gradients of a profile. Its metadata has the bytes of a step; a log says so."""
    bags = torch.tensor([[1, 2], [2, 3]])
    with (
        Server() as server,
        EmbeddingTables(ParameterServers(servers=[server.address]), timeout_s=20) as tables,
    ):
        table = ShardedEmbedding(50, 4, tables=tables, optimizer=RowSGD(lr=1.0), mode="sum")
        model = nn.Sequential(table, nn.Linear(4, 1))
        with captured_events() as events, Capture(model, iterations=2, warmup=2) as capture:
            while not capture.finished:
                model(bags).sum().backward()
                tables.step()
                capture.step()
            profile = capture.profile("test", workers=2, allreduce=ALLREDUCE)
        sent, received = table.step_bytes(bags)
    assert profile.metadata["tables_left_out"] == {
        "0": {"sent_bytes": sent, "received_bytes": received, "sent_std_bytes": 0.0}
    }
    assert {gradient.name for gradient in profile.gradients} == {"1.weight", "1.bias"}
    assert [each["modules"] for each in events if each["event"] == "pace.tables_left_out"] == [["0"]]
