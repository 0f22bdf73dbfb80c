"""Chunks that are zero but for some runs: on the wire, in a server's sums, and back at the workers."""

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pace.runtime.transports.runs import Runs
from pace.wire.frames import CHUNK_BYTES, Frame, FrameKind, WireFault
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
from pace_servers.runtime.server import Server
from pace_servers.runtime.sparse_frames import SparseParcel, parcel_of, read_runs
from pace_servers.runtime.sums import Reply, Sums
from tests.pace_servers.runtime.links import Worker, layout_of

SIZE_BYTES = 6 * CHUNK_BYTES + 1200
ELEMENTS = SIZE_BYTES // 4
ROW = 20  # so that rows lie across the borders of chunks


def _layout(*, deterministic: bool = False, dtype: str = "float32") -> Layout:
    return Layout(
        segments=(ServedSegment(size_bytes=SIZE_BYTES, dtype=dtype, turn=0),), deterministic=deterministic
    )


def _rows(generator: np.random.Generator, most: int) -> Runs:
    rows = generator.choice(ELEMENTS // ROW, size=int(generator.integers(0, most)), replace=False)
    return Runs.of_rows(np.sort(rows), ROW)


class _Pusher:
    """Pushes rounds, some as runs and some whole, in frames of random length, each when the last is back."""

    def __init__(self, rank: int, rounds: list[tuple[np.ndarray, Runs | None]], random_: random.Random):
        self.rank = rank
        self.rounds = rounds
        self.got = np.zeros((len(rounds), ELEMENTS), dtype=np.float32)
        self.lacking = [SIZE_BYTES] * len(rounds)
        self._random = random_

    def steps(self, layout: Layout, sums: Sums) -> Iterator[list[Reply]]:
        """Do half a frame a step."""
        for number, (values, runs) in enumerate(self.rounds, 1):
            self.got[number - 1] = values
            parcel = parcel_of(
                Frame(FrameKind.PUSH, 0, number, 0), memory_of(torch.from_numpy(values)), runs, layout
            )
            while parcel.left:
                frame, payload = parcel.next(self._random.choice([0, 1, 3, 100]) * CHUNK_BYTES)
                if frame.kind is FrameKind.PUSH_RUNS:
                    yield list(sums.push_runs(self.rank, frame, read_runs(frame, payload, layout)))
                    continue
                chunks = layout.check(frame)
                place = sums.begin(self.rank, frame, chunks)
                yield []
                if place is not None:
                    place[:] = payload
                content = Flat(memoryview(bytearray(payload)), "float32") if place is None else None
                yield list(sums.push(self.rank, frame, chunks, content))
            while self.lacking[number - 1]:
                yield []

    def read(self, reply: Reply, layout: Layout) -> bool:
        """Take what is due as a worker does; return whether it came as runs."""
        found = self.got[reply.round - 1]
        parcel = parcel_of(
            Frame(FrameKind.PULL, 0, reply.round, 0, reply.offset), reply.memory, reply.runs, layout
        )
        while parcel.left:
            frame, payload = parcel.next(CHUNK_BYTES)
            if frame.kind is FrameKind.PULL_RUNS:
                _, runs, values = read_runs(frame, payload, layout)
                found[runs.places] = values
            else:
                found.view(np.uint8)[frame.offset : frame.offset + frame.length] = np.frombuffer(
                    payload, np.uint8
                )
        self.lacking[reply.round - 1] -= len(reply.memory)
        return isinstance(parcel, SparseParcel)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_sums_are_exact_whatever_is_pushed_as_runs(seed: int, deterministic: bool) -> None:
    """Rounds in which some ranks push runs and others everything, in any order: all get the whole sum."""
    random_, generator = random.Random(seed), np.random.default_rng(seed)
    size, layout = random_.randint(1, 3), _layout(deterministic=deterministic)
    sums, pushers = Sums(layout, size), []
    for rank in range(size):
        rounds: list[tuple[np.ndarray, Runs | None]] = []
        for number in range(5):
            runs = _rows(generator, 60) if number in (1, 3) or random_.random() < 0.5 else None
            values = np.zeros(ELEMENTS, dtype=np.float32)
            places = slice(None) if runs is None else runs.places
            values[places] = generator.integers(-99, 99, len(values[places]))
            rounds.append((values, runs))
        pushers.append(_Pusher(rank, rounds, random_))
    expected = np.sum([[values for values, _ in pusher.rounds] for pusher in pushers], axis=0)
    steps = [pusher.steps(layout, sums) for pusher in pushers]
    due: list[Reply] = []
    as_runs: set[int] = set()
    while any(any(pusher.lacking) for pusher in pushers):
        if due and random_.random() < 0.5:
            reply = due.pop(random_.randrange(len(due)))
            if pushers[reply.worker].read(reply, layout):
                as_runs.add(reply.round)
        due += next(steps[random_.randrange(size)], [])
    for pusher in pushers:
        assert np.array_equal(pusher.got, expected)
    assert not sums.unfinished
    assert {2, 4} <= as_runs


def test_a_whole_segment_of_few_rows_is_one_frame() -> None:
    """Forty rows in 6 MB are sent in little more than their bytes, however slow the connection is."""
    elements = 100_000 * 16
    rows = np.sort(np.random.default_rng(0).choice(100_000, 40, replace=False))
    layout = Layout(segments=(ServedSegment(size_bytes=4 * elements, dtype="float32", turn=0),))
    memory = memory_of(torch.zeros(elements))
    parcel = parcel_of(Frame(FrameKind.PUSH), memory, Runs.of_rows(rows, 16), layout)
    frame, payload = parcel.next(0.0)
    assert not parcel.left
    assert len(payload) == frame.length == 12 + 40 * (4 + 64)


def test_workers_get_the_sum_of_each_others_rows() -> None:
    """Over a real connection: what a worker holds besides is zero, and what it did not push comes too."""
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        tensors = [torch.zeros(ELEMENTS) for _ in workers]
        layout = layout_of(tensors[:1])
        for worker in workers:
            worker.link.announce(layout)
        for number in range(1, 4):
            rows = [Runs.of_rows(np.array([number, 30 + rank, 900]), ROW) for rank in range(2)]
            for rank, tensor in enumerate(tensors):
                tensor.zero_()
                tensor[torch.from_numpy(rows[rank].places)] = float(rank + number)
            expected = tensors[0] + tensors[1]
            arrivals = [
                worker.start(0, tensor, runs=runs)
                for worker, tensor, runs in zip(workers, tensors, rows, strict=True)
            ]
            for arrival in arrivals:
                arrival.wait()
            assert all(torch.equal(tensor, expected) for tensor in tensors)
        for worker in workers:
            worker.finish()


def _payload(num_chunks: int, starts: list[int], lengths: list[int], values: int) -> memoryview:
    found = struct.pack("!III", num_chunks, len(starts), 0)
    found += np.array([*starts, *lengths], dtype="<u4").tobytes() + bytes(4 * values)
    return memoryview(found)


@pytest.mark.parametrize(
    ("offset", "payload"),
    [
        (0, memoryview(bytes(11))),
        (100, _payload(1, [0], [4], 4)),
        (0, _payload(0, [], [], 0)),
        (0, _payload(8, [0], [4], 4)),
        (0, _payload(1, [0], [4], 3)),
        (0, _payload(1, [0, 2], [4, 4], 8)),
        (0, _payload(1, [5], [0], 0)),
        (0, _payload(1, [CHUNK_BYTES // 4 - 1], [2], 2)),
        (6 * CHUNK_BYTES, _payload(1, [299], [2], 2)),
        (0, memoryview(struct.pack("!III", 1, (1 << 32) - 1, 4))),
    ],
)
def test_runs_that_do_not_fit_are_refused(offset: int, payload: memoryview) -> None:
    """Before anything is allocated for them or written."""
    with pytest.raises(WireFault):
        read_runs(Frame(FrameKind.PUSH_RUNS, 0, 1, 0, offset), payload, _layout())


def test_half_precision_is_sent_whole() -> None:
    """Its sums are held in float32: runs of it are neither sent nor taken."""
    layout = _layout(dtype="bfloat16")
    memory = memory_of(torch.zeros(SIZE_BYTES // 2, dtype=torch.bfloat16))
    parcel = parcel_of(Frame(FrameKind.PUSH), memory, Runs.whole(0, 4), layout)
    assert not isinstance(parcel, SparseParcel)
    with pytest.raises(WireFault, match="bfloat16"):
        read_runs(Frame(FrameKind.PUSH_RUNS), _payload(1, [0], [4], 4), layout)
