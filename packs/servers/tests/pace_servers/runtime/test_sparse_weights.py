"""Rows in asynchronous training: what changes goes to servers, and what others changed comes back."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.runtime.transports.runs import Runs
from pace.wire.frames import CHUNK_BYTES, Frame, FrameKind
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
from pace_servers.runtime.shared_weights import ChangedElements, SharedWeights
from pace_servers.runtime.sparse_frames import is_worth_it, parcel_of, read_runs
from pace_servers.runtime.sums import Reply
from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import run_ranks
from tests.runtime.models import weights
from tests.runtime.training import Weights, backward, difference, equal_bits

SIZE_BYTES = (5 * CHUNK_BYTES + 1200, 400)
ROW = 20  # so that rows lie across the borders of chunks
WORKERS = 3


class _Job:
    """Workers whose frames reach a server's weights one at a time, in random order and length.

    Changes are whole numbers, so that sums do not depend on their order.
    """

    def __init__(self, staleness: int | None, seed: int) -> None:
        self._random, self._generator = random.Random(seed), np.random.default_rng(seed)
        segments = tuple(
            ServedSegment(size_bytes=size, dtype="float32", turn=turn) for turn, size in enumerate(SIZE_BYTES)
        )
        self.layout = Layout(segments=segments, purpose="weights", staleness=staleness)
        self.weights = SharedWeights(self.layout, WORKERS)
        first = [self._generator.integers(-9, 9, size // 4).astype(np.float32) for size in SIZE_BYTES]
        self.expected = [each.copy() for each in first]
        self.held = [[each.copy() for each in first] for _ in range(WORKERS)]
        self.lacking = [0] * WORKERS
        self.sparse_replies = self.whole_replies = 0
        self._rounds = [0] * WORKERS
        for number in range(len(first)):
            self._send(0, number, FrameKind.SEED, None)

    def push(self, worker: int) -> None:
        """Push a change of some rows, or of all elements, of every segment."""
        self._rounds[worker] += 1
        self.lacking[worker] = sum(SIZE_BYTES)
        whole = self._random.random() < 0.3
        for number, size in enumerate(SIZE_BYTES):
            elements = size // 4
            rows = self._generator.choice(elements // ROW, self._random.choice([0, 1, 3]), replace=False)
            runs = Runs.whole(0, elements) if whole else Runs.of_rows(np.sort(rows), ROW)
            change = self._generator.integers(-9, 9, runs.num_elements).astype(np.float32)
            self.expected[number][runs.places] += change
            mine = self.held[worker][number]
            if not is_worth_it(runs, size, "float32"):
                mine[:] = 0
            mine[runs.places] = change
            self._send(worker, number, FrameKind.PUSH, runs)

    def _send(self, worker: int, number: int, kind: FrameKind, runs: Runs | None) -> None:
        memory = memory_of(torch.from_numpy(self.held[worker][number]))
        first = Frame(kind, 0, self._rounds[worker], number)
        parcel = parcel_of(first, memory, runs, self.layout)
        while parcel.left:
            frame, payload = parcel.next(self._random.choice([0, 1, 3, 100]) * CHUNK_BYTES)
            if frame.kind is FrameKind.PUSH_RUNS:
                replies = self.weights.push_runs(worker, frame, read_runs(frame, payload, self.layout))
            else:
                chunks, given = self.layout.check(frame), Flat(memoryview(bytearray(payload)), "float32")
                replies = self.weights.push(worker, frame, chunks, given)
            for reply in replies:
                self._deliver(reply)

    def _deliver(self, reply: Reply) -> None:
        """Do what a link does with a reply."""
        mine = self.held[reply.worker][reply.segment]
        first = Frame(FrameKind.PULL, 0, reply.round, reply.segment, reply.offset)
        parcel = parcel_of(first, reply.memory, reply.runs, self.layout)
        while parcel.left:
            frame, payload = parcel.next(self._random.choice([0, 1, 3]) * CHUNK_BYTES)
            if frame.kind is FrameKind.PULL_RUNS:
                self.sparse_replies += 1
                _, runs, values = read_runs(frame, payload, self.layout)
                mine[runs.places] = values
            else:
                self.whole_replies += 1
                mine[frame.offset // 4 : (frame.offset + frame.length) // 4] = np.frombuffer(
                    payload, np.float32
                )
        self.lacking[reply.worker] -= len(reply.memory)


@pytest.mark.parametrize("staleness", [0, 2, None])
@pytest.mark.parametrize("seed", range(2))
def test_a_worker_has_the_servers_weights_after_each_answer(staleness: int | None, seed: int) -> None:
    """Rows and whole pushes, in any order: what a worker has is what the server has, to the bit."""
    job, chosen = _Job(staleness, seed), random.Random(seed)
    for _ in range(40):
        free = [worker for worker in range(WORKERS) if job.lacking[worker] <= 0]
        before = {worker: job.lacking[worker] for worker in range(WORKERS)}
        job.push(worker := chosen.choice(free))
        for each in range(WORKERS):
            answered = job.lacking[each] == 0 and (each == worker or before[each] > 0)
            if answered:
                for mine, expected in zip(job.held[each], job.expected, strict=True):
                    assert np.array_equal(mine, expected)
    assert job.sparse_replies
    assert job.whole_replies


def test_nothing_is_kept_for_a_worker_that_has_left() -> None:
    """The others still receive all that changed since they last did; the one that left would get nothing."""
    changed = ChangedElements(3, 1000, 100)
    changed.note_runs(Runs.of_rows(np.array([1, 5]), 10))
    changed.forget(1)
    changed.note_runs(Runs.of_rows(np.array([5, 7]), 10))
    left = changed.take(1, range(10))
    assert left is not None
    assert left.num_elements == 0
    for worker in (0, 2):
        found = changed.take(worker, range(10))
        assert found is not None
        assert found.places.tolist() == [*range(10, 20), *range(50, 60), *range(70, 80)]


class _Bags(nn.Module):
    """A table of which a step touches a few rows, and a layer behind it."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, sparse=True, mode="sum")
        self.head = nn.Linear(width, 1)

    def forward(self, bags: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.table(bags).tanh()).square().sum()
        return found


def _bags(rank: int, step: int, rows: int, number: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, rows, (number, 5), generator=drawn)


STEPS = 5
# The optimizer changes rows of the last batches, too, with momentum.
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


def _train(rank: int, _size: int, servers: list[str]) -> list[tuple[Weights, Weights]]:
    """Return for each way to train the weights in the end, and the sum of this rank's changes."""
    from pace_servers.runtime import ParameterServers, asynchronous

    found = []
    for (_, make), staleness in zip(OPTIMIZERS.items(), (0, 2, None), strict=True):
        torch.manual_seed(2)
        model = _Bags(20_000, 16).double()
        optimizer = asynchronous(
            make(list(model.parameters())),
            model,
            communication=ParameterServers(servers=servers),
            staleness=staleness,
            op="sum",
            timeout_s=60.0,
        )
        inner_step: Any = optimizer.optimizer.step
        changes: dict[str, Any] = {}

        def counted(
            inner_step: Any = inner_step, model: Any = model, changes: dict[str, Any] = changes
        ) -> None:
            before = weights(model)
            inner_step()
            for name, after in weights(model).items():
                changes[name] = changes.get(name, 0) + after - before[name]

        inner: Any = optimizer.optimizer
        inner.step = counted  # to see the changes that it makes
        for step in range(STEPS):
            optimizer.zero_grad()
            number = 0 if step == 1 and rank == 1 else 8  # a batch without bags
            for part in range({2: 0, 3: 2}.get(step, 1)):  # a step without a backward pass, one with two
                backward(model(_bags(rank, step + 10 * part, 20_000, number)))
            found_grad = model.table.weight.grad
            if step == 4 and found_grad is not None:
                model.table.weight.grad = found_grad.coalesce() * 0.5
            optimizer.step()
        optimizer.synchronize()
        found.append((weights(model), changes))
        optimizer.close()
    return found


def test_asynchronous_training_of_a_table_loses_no_change() -> None:
    """In odd steps, with and without momentum, at any staleness: the first weights plus all changes."""
    with served(2) as (servers, _):
        ranks = run_ranks(_train, 2, servers)
    torch.manual_seed(2)
    first = weights(_Bags(20_000, 16).double())
    for which in range(len(OPTIMIZERS)):
        trained = [each[which][0] for each in ranks]
        assert equal_bits(*trained)
        total = {name: first[name] + sum(each[which][1][name] for each in ranks) for name in first}
        assert difference(trained[0], total) < 1e-12


def _train_with_sparse_adam(
    rank: int, _size: int, servers: list[str], staleness: int | None
) -> tuple[Weights, Weights, int]:
    """Train the table by SparseAdam and the layer by Adam; return weights, changes, and the table's bytes."""
    from pace_servers.runtime import ParameterServers, asynchronous

    torch.manual_seed(2)
    model = _Bags(20_000, 16).double()
    table, layer = (
        asynchronous(
            own,
            model,
            communication=ParameterServers(servers=servers),
            staleness=staleness,
            op="sum",
            timeout_s=60.0,
        )
        for own in (
            torch.optim.SparseAdam([model.table.weight], lr=0.01),
            torch.optim.Adam(model.head.parameters(), lr=0.01),
        )
    )
    changes: dict[str, Any] = dict.fromkeys(weights(model), 0)
    for optimizer in (table, layer):
        inner: Any = optimizer.optimizer

        def counted(inner_step: Any = inner.step) -> None:
            before = weights(model)
            inner_step()
            for name, after in weights(model).items():
                changes[name] = changes[name] + after - before[name]

        inner.step = counted  # to see the changes that it makes
    links = table._transport._links
    begun = sum(link._stream.carried_bytes[0] for link in links)
    for step in range(STEPS):
        for optimizer in (table, layer):
            optimizer.zero_grad()
        backward(model(_bags(rank, step, 20_000, 0 if step == 1 and rank == 1 else 8)))
        for optimizer in (table, layer):
            optimizer.step()
    sent = sum(link._stream.carried_bytes[0] for link in links) - begun
    for optimizer in (table, layer):
        optimizer.synchronize()
    trained = weights(model)
    for optimizer in (table, layer):
        optimizer.close()
    return trained, changes, sent


@pytest.mark.parametrize("staleness", [0, None])
def test_sparse_adam_trains_a_table_asynchronously(staleness: int | None) -> None:
    """The first weights plus all changes of all ranks, and no more than the changed rows is sent."""
    with served(2) as (servers, _):
        ranks = run_ranks(_train_with_sparse_adam, 2, servers, staleness)
    torch.manual_seed(2)
    first = weights(_Bags(20_000, 16).double())
    assert equal_bits(ranks[0][0], ranks[1][0])
    total = {name: first[name] + sum(changes[name] for _, changes, _ in ranks) for name in first}
    assert difference(ranks[0][0], total) < 1e-12
    assert difference(first, total) > 0.01
    rows = STEPS * 8 * 5
    for _, _, sent in ranks:
        assert sent < 1.5 * rows * (16 * 8 + 8)  # the whole table has 2.56 MB


# A table of 102 MB.
_BIG_ROWS, _BIG_WIDTH, _BIG_BAGS = 400_000, 64, 600


def _count_bytes(rank: int, _size: int, servers: list[str], staleness: int | None) -> tuple[int, int, int]:
    """Return what steps send and receive, and how many bytes the touched rows have, keys included."""
    from pace_servers.runtime import ParameterServers, asynchronous

    torch.manual_seed(2)
    model = _Bags(_BIG_ROWS, _BIG_WIDTH)
    optimizer = asynchronous(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        communication=ParameterServers(servers=servers),
        staleness=staleness,
        timeout_s=60.0,
    )
    links = optimizer._transport._links

    def carried() -> Any:
        return np.sum([link._stream.carried_bytes for link in links], axis=0)

    before, touched = carried(), 0
    for step in range(3):
        optimizer.zero_grad()
        bags = _bags(rank, step, _BIG_ROWS, _BIG_BAGS)
        touched += len(set(bags.flatten().tolist())) * (_BIG_WIDTH * 4 + 4)
        backward(model(bags))
        optimizer.step()
    sent, received = (carried() - before).tolist()
    optimizer.synchronize()
    optimizer.close()
    return sent, received, touched


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, None])
def test_an_asynchronous_step_sends_the_rows_it_changes(staleness: int | None) -> None:
    """Of a table of 102 MB: what the kernel carries is within 5 % of the bytes of rows touched."""
    with served(1) as (servers, _):
        ranks = run_ranks(_count_bytes, 2, servers, staleness)
    both = sum(touched for _, _, touched in ranks)
    for sent, received, touched in ranks:
        assert math.isclose(sent, touched, rel_tol=0.05)
        assert touched * 0.95 < received < 1.05 * both
    if staleness == 0:
        assert all(math.isclose(received, both, rel_tol=0.05) for _, received, _ in ranks)
