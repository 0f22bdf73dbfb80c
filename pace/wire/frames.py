"""The wire of parameter servers and of a fabric: frames of 32 bytes, each with a payload of known length.

Nothing here is pickled, and no length is believed before it is checked: every kind of frame has a largest
payload, and tensors' chunks have exactly the length that the layout says.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from pace.errors import PaceError

MAGIC = b"PACE"
VERSION = 3
HEADER_BYTES = 32
_HEADER = struct.Struct("!4sBBHIIQII")
assert _HEADER.size == HEADER_BYTES

# What is counted and passed on by itself, and so the least that one write to a socket carries.
CHUNK_BYTES = 32 << 10

# The smallest part that plans are to have: for less, hosts work more than links.
MIN_PARTITION_BYTES = 64 << 10

# One frame carries a run of neighboring chunks where the link is fast, as each costs the interpreter as much
# as a small one.
LONGEST_RUN_BYTES = 256 << 10


LARGEST_LENGTH = (1 << 32) - 1


class FrameKind(IntEnum):
    """What a frame says.

    MESSAGE and BLOCK are the fabric's: a JSON document, and a part of a tensor. PUSH_RUNS and PULL_RUNS carry
    what chunks have besides zeros (``sparse_frames``). TABLE is a part of a message about rows of tables.
    """

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    LAYOUT = 4
    PUSH = 5
    PULL = 6
    SEED = 7
    PING = 8
    ABORT = 9
    BYE = 10
    MESSAGE = 11
    BLOCK = 12
    PUSH_RUNS = 13
    PULL_RUNS = 14
    TABLE = 15


_KINDS = {int(kind): kind for kind in FrameKind}
_TENSOR_KINDS = frozenset({FrameKind.PUSH, FrameKind.PULL, FrameKind.SEED})

LARGEST_PAYLOAD_BYTES = {
    FrameKind.CHALLENGE: 64,
    FrameKind.HELLO: 4096,
    FrameKind.WELCOME: 64,
    FrameKind.LAYOUT: 64 << 20,
    FrameKind.PUSH: 1 << 20,
    FrameKind.PULL: 1 << 20,
    FrameKind.SEED: 1 << 20,
    FrameKind.PING: 0,
    FrameKind.ABORT: 4096,
    FrameKind.BYE: 0,
    FrameKind.MESSAGE: 16 << 20,
    FrameKind.BLOCK: 1 << 20,
    FrameKind.PUSH_RUNS: 1 << 20,
    FrameKind.PULL_RUNS: 1 << 20,
    FrameKind.TABLE: 1 << 20,
}


class WireFault(PaceError):
    """Bytes from the other end that break the protocol; the connection is closed and its peer named."""


class Frame(NamedTuple):
    """What precedes a payload.

    Attributes
    ----------
    layout
        Number of the layout that `segment` is counted in.
    round
        How often this segment was exchanged, this time included; 0 for a seed.
    segment
        Its number among those that the server holds.
    offset, length
        The part of the segment, or the length of another payload, in bytes.
    turn
        Its place in the sender's order; smaller goes first. Of an ABORT: 1 where a connection was lost and
        nothing else is wrong, so that the job may go on over other ones.
    """

    kind: FrameKind
    layout: int = 0
    round: int = 0
    segment: int = 0
    offset: int = 0
    length: int = 0
    turn: int = 0

    def pack(self) -> bytes:
        """Return the frame's 32 bytes."""
        return _HEADER.pack(MAGIC, VERSION, *self)

    @property
    def carries_tensor(self) -> bool:
        """Whether the payload is part of a segment."""
        return self.kind in _TENSOR_KINDS


def unpack(header: bytes | bytearray | memoryview) -> Frame:
    """Read a frame's 32 bytes.

    Raises
    ------
    WireFault
        When they are no frame of this version, or announce more than such a frame may carry.
    """
    magic, version, kind, layout, round_, segment, offset, length, turn = _HEADER.unpack(header)
    if magic != MAGIC:
        raise WireFault(f"a frame begins with {magic!r}; {MAGIC!r} was expected")
    if version != VERSION:
        raise WireFault(f"a frame is of version {version}; {VERSION} was expected")
    known = _KINDS.get(kind)
    if known is None:
        raise WireFault(f"a frame is of unknown kind {kind}")
    if length > LARGEST_PAYLOAD_BYTES[known]:
        raise WireFault(
            f"a {known.name} frame announces {length:,} bytes; at most {LARGEST_PAYLOAD_BYTES[known]:,} are"
            " allowed"
        )
    return Frame(known, layout, round_, segment, offset, length, turn)
