"""What one write to a connection carries: one chunk where it is slow, several where it is fast."""

import pytest

from pace.wire.frames import Frame, FrameKind, unpack
from pace.wire.outbox import Parcel, SendRate

KIB = 1 << 10


@pytest.mark.parametrize(
    ("run_bytes", "first_bytes"), [(0, 64), (100 * KIB, 64), (130 * KIB, 128), (1e9, 256)]
)
def test_a_frame_carries_what_the_connection_takes_in_a_moment(run_bytes: float, first_bytes: int) -> None:
    """Whole chunks, at least one, and never more than four of 64 KiB; the frame says which bytes they are."""
    parcel = Parcel(
        Frame(FrameKind.PUSH, segment=3, offset=512 * KIB), memoryview(bytes(300 * KIB)), 64 * KIB, 256 * KIB
    )
    frame, payload = parcel.next(run_bytes)
    assert (frame.segment, frame.offset, frame.length) == (3, 512 * KIB, first_bytes * KIB)
    assert len(payload) == first_bytes * KIB
    rest = []
    while parcel.left:
        rest.append(parcel.next(run_bytes)[0])
    assert rest[0].offset == frame.offset + frame.length
    assert sum(each.length for each in rest) + frame.length == 300 * KIB


def test_a_frame_carries_no_more_than_the_other_end_accepts() -> None:
    """However fast the connection is, blocks of a tensor stay within what readers allow for their kind."""
    size = 3 << 20
    parcel = Parcel(Frame(FrameKind.BLOCK), memoryview(bytes(size)), 128 * KIB)
    lengths = []
    while parcel.left:
        frame, _ = parcel.next(1e9)
        lengths.append(unpack(frame.pack()).length)
    assert sum(lengths) == size


def test_the_rate_is_that_of_writing_and_not_of_pauses() -> None:
    """What the kernel takes at first does not count, nor does a pause; nor is a moment long enough."""
    rate = SendRate()
    rate.wrote(1 << 20, 1.0)
    rate.wrote(50_000, 1.0 + 2**-8)
    assert rate.bytes_per_s == 0
    rate.wrote(50_000, 1.0 + 2**-6)
    assert rate.bytes_per_s == 100_000 * 2**6
    rate.pause()
    rate.wrote(50_000, 9.0)
    rate.wrote(200_000, 9.5)
    assert rate.bytes_per_s == 400_000
