"""A server's sums, without a network: frames that come in any order, also while others are being received."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from pace.wire.frames import CHUNK_BYTES, Frame, FrameKind, WireFault
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import Layout, ServedSegment
from pace_servers.runtime.sums import Reply, Sums

SIZE_BYTES = 5 * CHUNK_BYTES + 1200


def _push(round_: int, offset: int, length: int) -> Frame:
    return Frame(FrameKind.PUSH, 0, round_, 0, offset, length, 0)


class _Worker:
    """Pushes round after round, in frames of random length; the next round when it has all of the last."""

    def __init__(self, rank: int, rounds: np.ndarray, random_: random.Random) -> None:
        self.rank = rank
        self._rounds = rounds
        self._random = random_
        self.due: list[Reply] = []
        self.got = np.zeros_like(rounds)
        self.lacking = [SIZE_BYTES] * len(rounds)

    def steps(self, layout: Layout, sums: Sums) -> Iterator[list[Reply]]:
        """Do half a frame a step: its beginning, then the rest."""
        for number, values in enumerate(self._rounds, 1):
            memory, offset = memoryview(values).cast("B"), 0
            while offset < SIZE_BYTES:
                length = min(self._random.randint(1, 4) * CHUNK_BYTES, SIZE_BYTES - offset)
                frame, content = _push(number, offset, length), memory[offset : offset + length]
                chunks = layout.check(frame)
                place = sums.begin(self.rank, frame, chunks)
                yield []
                if place is not None:
                    place[:] = content
                yield list(
                    sums.push(self.rank, frame, chunks, Flat(content, "float32") if place is None else None)
                )
                offset += length
            while self.lacking[number - 1]:
                yield []

    def read(self) -> None:
        """Take what is due longest: until then it may not change."""
        reply = self.due.pop(0)
        stop = reply.offset + len(reply.memory)
        self.got[reply.round - 1].view(np.uint8)[reply.offset : stop] = np.frombuffer(reply.memory, np.uint8)
        self.lacking[reply.round - 1] -= len(reply.memory)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_contribution_counts_once_however_frames_overlap(seed: int, deterministic: bool) -> None:
    """Workers' frames of random length begin and end in random order; sums are exact and stay until read."""
    random_ = random.Random(seed)
    size = random_.randint(1, 4)
    layout = Layout(
        segments=(ServedSegment(size_bytes=SIZE_BYTES, dtype="float32", turn=0),), deterministic=deterministic
    )
    sums = Sums(layout, size)
    values = np.random.default_rng(seed).integers(-99, 99, (size, 3, SIZE_BYTES // 4)).astype(np.float32)
    workers = [_Worker(rank, values[rank], random_) for rank in range(size)]
    steps = [worker.steps(layout, sums) for worker in workers]
    while any(any(worker.lacking) for worker in workers):
        rank = random_.randrange(size)
        if workers[rank].due and random_.random() < 0.5:
            workers[rank].read()
        else:
            for reply in next(steps[rank], []):
                workers[reply.worker].due.append(reply)
    for worker in workers:
        assert np.array_equal(worker.got, values.sum(axis=0))
    assert not sums.unfinished


def test_a_frame_that_is_not_due_writes_nothing() -> None:
    """The rounds of a worker's chunks come one after the other."""
    layout = Layout(segments=(ServedSegment(size_bytes=SIZE_BYTES, dtype="float32", turn=0),))
    sums = Sums(layout, 2)
    frame = _push(1, 0, CHUNK_BYTES)
    assert sums.begin(0, frame, layout.check(frame)) is not None
    with pytest.raises(WireFault, match="round 1 of segment 0 where 2 is due"):
        sums.begin(0, frame, layout.check(frame))
    late = _push(3, 0, CHUNK_BYTES)
    with pytest.raises(WireFault, match="round 3 of segment 0 where 1 is due"):
        sums.begin(1, late, layout.check(late))


def test_a_second_contribution_does_not_wait_for_one_that_is_being_received() -> None:
    """It is copied, as its thread's memory is used again, and added when the first is complete."""
    layout = Layout(segments=(ServedSegment(size_bytes=SIZE_BYTES, dtype="float32", turn=0),))
    sums = Sums(layout, 2)
    frame = _push(1, 0, 2 * CHUNK_BYTES)
    chunks = layout.check(frame)
    place = sums.begin(0, frame, chunks)
    assert place is not None
    assert sums.begin(1, frame, chunks) is None
    number = 2 * CHUNK_BYTES // 4
    scratch = bytearray(np.full(number, 1, np.float32).tobytes())
    assert not list(sums.push(1, frame, chunks, Flat(memoryview(scratch), "float32")))
    scratch[:] = bytes(len(scratch))  # the receiving thread's memory is used again at once
    place[:] = np.full(number, 2, np.float32).tobytes()
    replies = list(sums.push(0, frame, chunks, None))
    assert {reply.worker for reply in replies} == {0, 1}
    assert all((np.frombuffer(reply.memory, np.float32) == 3).all() for reply in replies)
