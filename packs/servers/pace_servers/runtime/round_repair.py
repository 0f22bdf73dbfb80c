"""The progress of segments; and which rank pushes what, so that a lost server changes no sum.

If no rank has the sum of a chunk, the chunk is summed again, as every rank still has what it pushed. If some
ranks have the sum, one of them pushes it, and the other ranks add zeros.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pace.errors import CommunicationFailed
from pace.runtime.transports.transport import Done
from pace.wire.frames import CHUNK_BYTES
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import ServedSegment
from pace_servers.runtime.link import PushPullCall, ServerLink


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProgress:
    """A rank's progress with a segment.

    Attributes
    ----------
    completed
        Number of sums that the rank has.
    missing
        A number with a bit for each missing chunk of the next sum; None if the rank has not begun to push for
        it.
    """

    completed: int
    missing: int | None


class SegmentExchange:
    """A prepared segment, and the progress of its exchanges.

    Attributes
    ----------
    served
        What its server knows of it.
    planned_link
        The number of the server in the plan.
    link, place
        The link to its server, and its number there.
    round
        How often it was pushed there.
    completed
        Number of its sums that this rank has.
    received
        Memory with its last sum, if that is kept.
    call, complete
        The call that is in flight or waits for links, and the function to call at its end.
    helping
        Whether this rank is giving others a sum that they lack. Its next push waits for that.
    """

    __slots__ = (
        "call",
        "complete",
        "completed",
        "helping",
        "link",
        "place",
        "planned_link",
        "received",
        "round",
        "served",
    )

    complete: Done
    link: ServerLink
    place: int

    def __init__(self, served: ServedSegment, planned_link: int | None, received: memoryview | None) -> None:
        self.served = served
        self.planned_link = planned_link
        self.received = received
        self.round = 0
        self.completed = 0
        self.call: PushPullCall | None = None
        self.helping = False

    @property
    def num_chunks(self) -> int:
        """The number of chunks."""
        return -(-self.served.size_bytes // CHUNK_BYTES)

    @property
    def progress(self) -> SegmentProgress:
        """The progress that other ranks must know after a loss."""
        call = self.call
        # A call that was not given to a link yet lacks all chunks.
        missing = None if call is None else call.missing or (1 << self.num_chunks) - 1
        return SegmentProgress(completed=self.completed, missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOwners:
    """The chunks of a segment that single ranks push, as bits of numbers; every rank pushes the others.

    Attributes
    ----------
    due
        The number of the repeated round.
    chunks
        For each rank, the chunks whose sums it gives to all.
    """

    due: int
    chunks: tuple[int, ...]

    @property
    def all_chunks(self) -> int:
        """The chunks that a single rank pushes."""
        found = 0
        for each in self.chunks:
            found |= each
        return found


def find_owners(ranks: Sequence[SegmentProgress], num_chunks: int) -> ChunkOwners | None:
    """Return which ranks push the chunks of a segment whose sums some ranks have and others lack.

    None if no rank has any such sum: then every rank pushes its own values.

    Raises
    ------
    CommunicationFailed
        If the ranks are in rounds that are too far apart.
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
    """Fill chunks with the number that changes no bit of a sum when it is added."""
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
