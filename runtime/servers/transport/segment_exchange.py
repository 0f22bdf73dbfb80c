"""A segment that is pushed and pulled in every round, and its progress."""

from pace.runtime.servers.layout import ServedSegment
from pace.runtime.servers.link import PushPullCall, ServerLink
from pace.runtime.servers.transport.round_repair import SegmentProgress
from pace.runtime.transports.transport import Done
from pace.wire.frames import CHUNK_BYTES


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
