"""What ranks give one another so that a round that lost a server ends with the right sums."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.errors import CommunicationFailed
from pace_servers.runtime.round_repair import (
    SegmentProgress,
    add_nothing,
    copy_chunks,
    find_owners,
)

NUM_CHUNKS = 4
CHUNK_BYTES = 8


def test_chunks_that_nobody_has_are_pushed_again_by_all() -> None:
    """Nothing came back anywhere: there is nothing to make up for, begun or not."""
    begun = SegmentProgress(completed=3, missing=0b1111)
    assert find_owners([begun, begun], NUM_CHUNKS) is None
    assert find_owners([begun, SegmentProgress(completed=3, missing=None)], NUM_CHUNKS) is None


def test_one_rank_gives_each_chunk_that_some_rank_has() -> None:
    """The first one that has it; a rank that has all of the sum gives what those before it lack."""
    found = find_owners(
        [
            SegmentProgress(completed=3, missing=0b1110),
            SegmentProgress(completed=3, missing=0b1100),
            SegmentProgress(completed=3, missing=0b1111),
        ],
        NUM_CHUNKS,
    )
    assert found is not None
    assert (found.due, found.chunks, found.all_chunks) == (4, (0b0001, 0b0010, 0), 0b0011)
    found = find_owners(
        [SegmentProgress(completed=3, missing=0b0111), SegmentProgress(completed=4, missing=0b1111)],
        NUM_CHUNKS,
    )
    assert found is not None
    assert found.chunks == (0b1000, 0b0111)


@pytest.mark.parametrize(
    "ranks",
    [
        [SegmentProgress(completed=1, missing=1), SegmentProgress(completed=3, missing=None)],
        [SegmentProgress(completed=1, missing=None), SegmentProgress(completed=2, missing=None)],
    ],
)
def test_what_cannot_be_made_up_for_is_an_error(ranks: list[SegmentProgress]) -> None:
    """A sum that exists though a rank has not contributed to it, or ranks two sums apart."""
    with pytest.raises(CommunicationFailed, match="too far apart"):
        find_owners(ranks, NUM_CHUNKS)


@settings(deadline=None)
@given(
    st.sampled_from(["float32", "float64", "float16", "int32"]),
    st.lists(
        st.tuples(st.booleans(), st.integers(0, (1 << NUM_CHUNKS) - 1), st.booleans()), min_size=1, max_size=4
    ),
)
def test_every_rank_ends_with_the_sum(dtype: str, ranks: list[tuple[bool, int, bool]]) -> None:
    """Whatever came back where: added chunk by chunk, what ranks give is the sum that was due, to the bit."""
    per_chunk = CHUNK_BYTES // np.dtype(dtype).itemsize
    total = NUM_CHUNKS * per_chunk - 1 * (dtype == "float16")
    pushed = [np.arange(total, dtype=dtype) + rank for rank in range(len(ranks))]
    due = sum(pushed[1:], pushed[0].copy())
    due[0] = -0.0
    progress, memories, kept = [], [], []
    for (ended, has, next_begun), mine in zip(ranks, pushed, strict=True):
        memory = mine.copy()
        every = (1 << NUM_CHUNKS) - 1
        if ended:
            memory[:] = 77  # the next round's
            progress.append(SegmentProgress(completed=5, missing=every if next_begun else None))
        else:
            copy_chunks(_bytes(memory), _bytes(due), has, CHUNK_BYTES)
            progress.append(SegmentProgress(completed=4, missing=every & ~has))
        memories.append(memory)
        kept.append(due.copy())
    owners = find_owners(progress, NUM_CHUNKS)
    if owners is None or owners.due == 6:
        assert all(ended for ended, *_ in ranks) or not any(ended or has for ended, has, _ in ranks)
        return
    given_ = []
    for rank, (ended, *_) in enumerate(ranks):
        own = owners.chunks[rank]
        memory = np.zeros_like(due) if ended else memories[rank]
        add_nothing(_bytes(memory), dtype, owners.all_chunks & ~own, CHUNK_BYTES)
        if ended:
            copy_chunks(_bytes(memory), _bytes(kept[rank]), own, CHUNK_BYTES)
        given_.append(memory)
    found = given_[0].copy()
    for memory in given_[1:]:
        found += memory
    unsummed = [at for at in range(NUM_CHUNKS) if not owners.all_chunks >> at & 1]
    expected = due.copy()
    for at in unsummed:  # these are summed anew
        where = slice(at * per_chunk, (at + 1) * per_chunk)
        expected[where] = sum((each[where] for each in pushed[1:]), pushed[0][where].copy())
    assert found.tobytes() == expected.tobytes()


def _bytes(array: Any) -> memoryview:
    return memoryview(array.view(np.uint8))
