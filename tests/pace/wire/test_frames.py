"""Frames: what is packed is unpacked, and noise is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.wire.frames import LARGEST_PAYLOAD_BYTES, Frame, FrameKind, WireFault, unpack

_U32 = st.integers(0, (1 << 32) - 1)


@given(
    kind=st.sampled_from(list(FrameKind)),
    layout=st.integers(0, 65535),
    numbers=st.tuples(_U32, _U32, st.integers(0, (1 << 64) - 1), _U32, _U32),
)
def test_frames_survive_the_wire(kind: FrameKind, layout: int, numbers: tuple[int, ...]) -> None:
    """What is packed is unpacked, or refused for its length alone."""
    round_, segment, offset, length, turn = numbers
    frame = Frame(
        kind=kind, layout=layout, round=round_, segment=segment, offset=offset, length=length, turn=turn
    )
    assert len(frame.pack()) == 32
    if length <= LARGEST_PAYLOAD_BYTES[kind]:
        assert unpack(frame.pack()) == frame
    else:
        with pytest.raises(WireFault, match="at most"):
            unpack(frame.pack())


@given(st.binary(min_size=32, max_size=32))
def test_random_bytes_are_no_frame(noise: bytes) -> None:
    """Nothing but a fault comes of noise."""
    with pytest.raises(WireFault):
        unpack(noise)
