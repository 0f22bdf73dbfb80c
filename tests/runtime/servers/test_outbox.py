"""What one write to a connection carries: one chunk where it is slow, several where it is fast."""

import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.runtime.servers.arithmetic import ITEM_BYTES, Flat
from pace.runtime.servers.server import Server
from pace.wire.frames import Frame, FrameKind, unpack
from pace.wire.outbox import Parcel, SendRate
from pace.wire.streams import _TCP_NOTSENT_LOWAT, Stream
from tests.runtime.servers.links import Worker, layout_of

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


def test_a_slow_connection_holds_little_that_nothing_can_overtake() -> None:
    """What the kernel may hold unsent follows the rate, within bounds, at both ends, as the kernel says."""

    def held(stream: Stream) -> int:
        found = stream._socket.getsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT)
        assert found == stream.notsent_bytes
        return found

    with Server() as server:
        worker = Worker(server, 0, 1)
        worker.link.announce(layout_of([torch.zeros(8)], pace_bytes_per_s=6e6))
        worker.start(0, torch.zeros(8)).wait()
        ours, theirs = worker.link._stream, server.sessions["job"].members[0].stream
        assert held(ours) == held(theirs) == 24_000
        rates = {6.5e6: 24_000, 1e3: 16 * KIB, 1e9: 128 * KIB, 30e6: 128 * KIB, 10e6: 40_000}
        for rate, expected in rates.items():
            ours.expect_rate(rate)
            assert held(ours) == expected
        worker.finish()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(ITEM_BYTES)),
    st.integers(1, 40_000),
    st.tuples(st.integers(0, 40_000), st.integers(0, 40_000)),
    st.booleans(),
)
def test_flat_memory_adds_and_copies_as_torch_does(
    dtype: str, elements: int, bounds: tuple[int, int], add: bool
) -> None:
    """Any part, any dtype; half precision into float32 as well."""
    item = ITEM_BYTES[dtype]
    start, stop = sorted(bound % (elements + 1) for bound in bounds)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    into = Flat.zeros(elements * ITEM_BYTES[wide], wide)
    values = Flat.zeros(elements * item, dtype)
    expected = (torch.arange(elements) % 90).to(getattr(torch, wide))
    more = (torch.arange(elements) % 37).to(getattr(torch, dtype))
    torch.frombuffer(into.memory, dtype=getattr(torch, wide)).copy_(expected)
    torch.frombuffer(values.memory, dtype=getattr(torch, dtype)).copy_(more)
    wider = ITEM_BYTES[wide]
    (into.add if add else into.copy)(values, start * wider, stop * wider, start * item)
    if add:
        expected[start:stop] += more[start:stop]
    else:
        expected[start:stop] = more[start:stop].to(expected.dtype)
    assert torch.equal(torch.frombuffer(into.memory, dtype=getattr(torch, wide)), expected)


def test_pacing_is_set_at_both_ends_and_can_be_read_back() -> None:
    """A plan's pace holds for worker and server, and ends with the plan; the kernel says so itself."""
    with Server() as server:
        worker = Worker(server, 0, 1)
        tensor = torch.ones(10)
        found = []
        for pace in (None, 3e6, None):
            worker.link.announce(layout_of([tensor], pace_bytes_per_s=pace))
            worker._rounds.clear()
            worker.start(0, tensor).wait()
            member = server.sessions["job"].members[0]
            found.append((worker.link.pacing_bytes_per_s, member.stream.pacing_bytes_per_s))
        worker.finish()
    assert found == [(None, None), (3_000_000, 3_000_000), (None, None)]
