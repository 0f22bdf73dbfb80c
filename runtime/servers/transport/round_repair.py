"""Which rank gives what, so that a round which lost a server ends with the sums that it would have had.

A chunk whose sum no rank has is summed again: every rank still has what it pushed. A chunk whose sum some
rank has got is pushed by one such rank alone, and the others add nothing to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pace.errors import CommunicationFailed
from pace.runtime.servers.arithmetic import Flat


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProgress:
    """How far a rank is with a segment.

    Attributes
    ----------
    completed
        How many of its sums the rank has.
    missing
        A bit for every chunk of the next sum that it has not; None where it has not begun to push that one.
    """

    completed: int
    missing: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOwners:
    """Who pushes which chunks of a segment, a bit for each; all others are pushed by every rank.

    Attributes
    ----------
    due
        The number of the round that is repeated.
    chunks
        For every rank, those whose sum it gives to all.
    """

    due: int
    chunks: tuple[int, ...]

    @property
    def all_chunks(self) -> int:
        """Those that one rank alone gives."""
        found = 0
        for each in self.chunks:
            found |= each
        return found


def find_owners(ranks: Sequence[SegmentProgress], num_chunks: int) -> ChunkOwners | None:
    """Return who gives the chunks of a segment whose sums some rank has, and some other has not.

    None where no rank has any: then every rank pushes what it has to push.

    Raises
    ------
    CommunicationFailed
        When ranks are further apart than any two can be.
    """
    every = (1 << num_chunks) - 1
    due = min(each.completed for each in ranks) + 1
    taken = 0
    chunks = []
    for each in ranks:
        has = every if each.completed == due else every & ~each.missing if each.missing is not None else 0
        chunks.append(has & ~taken)
        taken |= has
    absent = any(each.completed < due and each.missing is None for each in ranks)
    if any(each.completed > due for each in ranks) or (taken and absent):
        raise CommunicationFailed("ranks are too far apart for the round to be repeated")
    return ChunkOwners(due=due, chunks=tuple(chunks)) if taken else None


def add_nothing(memory: memoryview, dtype: str, chunks: int, chunk_bytes: int) -> None:
    """Fill chunks with what changes no bit of a sum that it is added to."""
    flat = Flat(memory, dtype)
    for start, end in _stretches(chunks, chunk_bytes, len(memory)):
        flat.fill(flat.neutral, start, end)


def copy_chunks(into: memoryview, values: memoryview, chunks: int, chunk_bytes: int) -> None:
    """Copy chunks."""
    for start, end in _stretches(chunks, chunk_bytes, len(into)):
        into[start:end] = values[start:end]


def _stretches(chunks: int, chunk_bytes: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    for number in range(chunks.bit_length()):
        if chunks >> number & 1:
            yield number * chunk_bytes, min((number + 1) * chunk_bytes, size_bytes)
