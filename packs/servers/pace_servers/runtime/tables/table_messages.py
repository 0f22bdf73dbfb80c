"""What workers and servers say about tables: messages of any length, in frames of the wire; a worker's links.

A frame's `layout` is the table's number, `round` the request that an answer belongs to, `segment` what is
said, and `turn` the length of the whole message, whose frames follow one another.
"""

import itertools
import struct
from concurrent.futures import Future
from enum import IntEnum
from typing import Any

import numpy as np

from pace.errors import CommunicationFailed, InvalidUse
from pace.solver.arrays import IntArray
from pace.wire.frames import HEADER_BYTES, LARGEST_PAYLOAD_BYTES, Frame, FrameKind, WireFault
from pace.wire.outbox import Parcel
from pace.wire.streams import Stream
from pace_servers.runtime.link import ServerLink
from pace_servers.runtime.tables.initial_rows import RowArray

LARGEST_MESSAGE_BYTES = 1 << 30
_CLOCK = struct.Struct("<q")
_PUSH = struct.Struct("<qq")
_NOT_FINITE = -1
_SAVE_ID_BYTES = 32
_KEY = np.dtype("<u4")
_NUMBER = np.dtype("<f4")

# Frames of a message follow one another, so they are as long as they may be.
_FRAME_BYTES = LARGEST_PAYLOAD_BYTES[FrameKind.TABLE]


class TableWord(IntEnum):
    """What a message says.

    OPEN is a table's spec, LOOK_UP a clock and keys, PUSH a clock, keys and gradients, SAVE a clock and a
    name. Servers answer with ROWS, with DONE, or with a text that says why they REFUSE.
    """

    OPEN = 1
    LOOK_UP = 2
    PUSH = 3
    SAVE = 4
    ROWS = 5
    DONE = 6
    REFUSE = 7


def table_parcel(word: TableWord, table: int, request: int, message: bytes | memoryview) -> Parcel:
    """Return what is put into an outbox."""
    first = Frame(
        FrameKind.TABLE, layout=table, round=request % (1 << 32), segment=int(word), turn=len(message)
    )
    return Parcel(first, memoryview(message), _FRAME_BYTES)


class TableReader:
    """Puts the frames of one connection together."""

    def __init__(self) -> None:
        self._message = bytearray()
        self._filled = 0

    def read(self, stream: Stream, frame: Frame) -> bytearray | None:
        """Read a frame's payload; return the message if it is complete.

        Raises
        ------
        WireFault
            When the frame is not due.
        """
        if self._filled == 0:
            if frame.turn > LARGEST_MESSAGE_BYTES:
                raise WireFault(
                    f"a message of {frame.turn:,} bytes; at most {LARGEST_MESSAGE_BYTES:,} are allowed"
                )
            self._message = bytearray(frame.turn)
        end = self._filled + frame.length
        if frame.offset != self._filled or frame.turn != len(self._message) or end > frame.turn:
            raise WireFault("a part of a message that is not due")
        stream.read_into(memoryview(self._message)[self._filled : end])
        self._filled = end
        if end < frame.turn:
            return None
        self._filled = 0
        return self._message


def pack_look_up(clock: int, keys: IntArray) -> bytes:
    """Return the message that asks for rows once updates up to `clock` are in."""
    return _CLOCK.pack(clock) + keys.astype(_KEY).tobytes()


def read_look_up(message: bytearray) -> tuple[int, IntArray]:
    """Return clock and keys; see ``pack_look_up``."""
    if len(message) < _CLOCK.size or (len(message) - _CLOCK.size) % _KEY.itemsize:
        raise WireFault("keys that cannot be read")
    keys = np.frombuffer(message, dtype=_KEY, offset=_CLOCK.size).astype(np.int64)
    return _CLOCK.unpack_from(message)[0], keys


def pack_push(
    clock: int, keys: IntArray, gradients: RowArray, places: IntArray | None = None, *, finite: bool = True
) -> memoryview:
    """Return the message with a worker's update of number `clock`, from 0.

    Parameters
    ----------
    places
        Where in `gradients` those of `keys` are; None if they are all.
    finite
        Whether all of the worker's gradients are; if not, the step is skipped for all workers.
    """
    if not finite:
        return memoryview(_PUSH.pack(clock, _NOT_FINITE))
    count, width = len(keys), gradients.shape[1]
    numbers_at = _PUSH.size + count * _KEY.itemsize
    message = np.empty(numbers_at + count * width * _NUMBER.itemsize, dtype=np.uint8)
    _PUSH.pack_into(message.data, 0, clock, count)
    message[_PUSH.size : numbers_at].view(_KEY)[:] = keys
    rows = message[numbers_at:].view(_NUMBER).reshape(count, width)
    if places is None:
        rows[:] = gradients
    else:
        np.take(gradients, places, axis=0, out=rows, mode="clip")
    return message.data


def step_bytes(num_rows: int, width: int) -> tuple[int, int]:
    """Return what a step with so many rows of a server sends and receives, without signs of life.

    Long messages take a few headers more.
    """
    asked = HEADER_BYTES + _CLOCK.size + num_rows * _KEY.itemsize
    row_bytes = width * _NUMBER.itemsize
    pushed = HEADER_BYTES + _PUSH.size + num_rows * (_KEY.itemsize + row_bytes)
    return (asked + pushed, HEADER_BYTES + num_rows * row_bytes) if num_rows else (pushed, 0)


def read_push(message: bytearray, width: int) -> tuple[int, tuple[IntArray, RowArray] | None]:
    """Return the clock, and keys and gradients, or None for a step to be skipped; see ``pack_push``."""
    if len(message) < _PUSH.size:
        raise WireFault("an update that cannot be read")
    clock, count = _PUSH.unpack_from(message)
    if count == _NOT_FINITE and len(message) == _PUSH.size:
        return clock, None
    row_bytes = _KEY.itemsize + width * _NUMBER.itemsize
    if count < 0 or len(message) != _PUSH.size + count * row_bytes:
        raise WireFault(f"an update of {count} rows in {len(message)} bytes")
    keys = np.frombuffer(message, dtype=_KEY, offset=_PUSH.size, count=count).astype(np.int64)
    gradients = np.frombuffer(message, dtype=_NUMBER, offset=_PUSH.size + count * _KEY.itemsize)
    return clock, (keys, gradients.reshape(count, width))


def pack_save(clock: int, save_id: str, name: str) -> bytes:
    """Return the message that asks for a checkpoint once updates up to `clock` are in.

    Parameters
    ----------
    save_id
        32 characters that all files of one checkpoint have in common.
    """
    return _CLOCK.pack(clock) + save_id.encode() + name.encode()


def read_save(message: bytearray) -> tuple[int, str, str]:
    """Return clock, id and name; see ``pack_save``."""
    begin = _CLOCK.size + _SAVE_ID_BYTES
    if len(message) < begin:
        raise WireFault("a checkpoint that cannot be read")
    texts = message[_CLOCK.size : begin], message[begin:]
    save_id, name = (text.decode(errors="replace") for text in texts)
    return _CLOCK.unpack_from(message)[0], save_id, name


class TableLink(ServerLink):
    """A ``ServerLink`` that carries messages about tables, in the order in which they are put in."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._asked: dict[int, Future[bytearray]] = {}
        self._numbers = itertools.count()
        self._reader = TableReader()
        super().__init__(*arguments, **named)

    def tell(self, word: TableWord, table: int, message: bytes | memoryview) -> None:
        """Send what has no answer; returns at once.

        Raises
        ------
        CommunicationFailed
            If the server has said goodbye.
        """
        if self.left:
            raise CommunicationFailed(f"{self.address.name} has left the training")
        self._outbox.put((0,), table_parcel(word, table, 0, message))

    def ask(self, word: TableWord, table: int, message: bytes) -> "Future[bytearray]":
        """Send what has an answer; returns at once."""
        answer: Future[bytearray] = Future()
        with self._lock:
            over = self._over
            number = next(self._numbers) % (1 << 32)
            if not over:
                self._asked[number] = answer
        if over:
            answer.set_exception(CommunicationFailed(f"{self.address.name} has left the training"))
        else:
            self._outbox.put((0,), table_parcel(word, table, number, message))
        return answer

    @property
    def carried_bytes(self) -> tuple[int, int]:
        """What the kernel has sent and seen acknowledged, and received."""
        return self._stream.carried_bytes

    def _take(self, frame: Frame) -> bool:
        if frame.kind is not FrameKind.TABLE:
            going_on = super()._take(frame)
            if not going_on:
                self._end_asked(f"{self.address.name} has left the training")
            return going_on
        message = self._reader.read(self._stream, frame)
        if message is None:
            return True
        with self._lock:
            answer = self._asked.pop(frame.round, None)
        if answer is None:
            raise WireFault(f"an answer to request {frame.round}, which is not under way")
        if frame.segment == TableWord.REFUSE:
            answer.set_exception(InvalidUse(f"{self.address.name}: {message.decode(errors='replace')}"))
        elif frame.segment in (TableWord.ROWS, TableWord.DONE):
            answer.set_result(message)
        else:
            raise WireFault(f"word {frame.segment} from a server")
        return True

    def abort(self, reason: str, *, lost: bool = False) -> None:
        """End the link, telling the server why; whoever waits for an answer gets an error. Idempotent."""
        super().abort(reason, lost=lost)
        self._end_asked(reason)

    def _end_asked(self, reason: str) -> None:
        with self._lock:
            asked = list(self._asked.values())
            self._asked.clear()
        for answer in asked:
            answer.set_exception(CommunicationFailed(reason))
