"""A segment that is pushed and pulled round after round, and how far it has come."""

from pace.runtime.servers.layout import ServedSegment
from pace.runtime.servers.link import PushPullCall, ServerLink
from pace.runtime.servers.transport.round_repair import SegmentProgress
from pace.runtime.transports.transport import Done
from pace.wire.frames import CHUNK_BYTES


class SegmentExchange:
    """A prepared segment, and how far its exchanges have come.

    Attributes
    ----------
    served, planned_link
        What its server knows of it; the server that the plan has for it.
    link, place
        Where it is, and its number there.
    round
        How often it was pushed there.
    completed
        How many of its sums this rank has.
    received
        Its last sum, where that is kept.
    call, complete
        What is under way, or waits for links; and what is called with its end.
    helping
        Whether this rank is giving others a sum that it has itself: its next push waits for that.
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
        """Chunks of the runtime's own layouts."""
        return -(-self.served.size_bytes // CHUNK_BYTES)

    @property
    def progress(self) -> SegmentProgress:
        """What other ranks must know of it after a loss."""
        call = self.call
        # What no link was given yet has all of its chunks missing.
        missing = None if call is None else call.missing or (1 << self.num_chunks) - 1
        return SegmentProgress(completed=self.completed, missing=missing)
