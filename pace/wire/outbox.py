"""What is to be written to one connection: chosen afresh before every chunk, written by one thread.

A chunk is chosen only when the kernel has little left to send, so an urgent one waits for no more than that,
however much was put in before it.
"""

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Literal

from pace.wire.frames import LARGEST_LENGTH, LARGEST_PAYLOAD_BYTES, Frame, FrameKind
from pace.wire.streams import BEAT_S, Stream

Ending = Literal["open", "finishing", "aborting", "lost"]

_LONGEST_REASON = 2000

# A frame is as long as what the connection carries in this time: so long may an urgent one have to wait.
_FRAME_S = 2e-3
_RATED_OVER_S = 10e-3


class Parcel:
    """A stretch of memory on its way, run by run; its first frame says what it is.

    Parameters
    ----------
    chunk_bytes
        What a frame carries at least; without it, one frame carries all.
    longest_run_bytes
        What a frame carries at most; unless given, the most that the other end accepts in a frame of this
        kind.
    on_left
        Called from the writing thread when all of it has left but what the kernel may hold unsent.
    """

    __slots__ = ("_chunk_bytes", "_first", "_longest_run_bytes", "left", "memory", "on_left", "position")

    def __init__(
        self,
        first: Frame,
        memory: memoryview,
        chunk_bytes: int = LARGEST_LENGTH,
        longest_run_bytes: int | None = None,
        on_left: Callable[[], None] | None = None,
    ) -> None:
        self._first = first
        self._chunk_bytes = chunk_bytes
        self._longest_run_bytes = longest_run_bytes or LARGEST_PAYLOAD_BYTES[first.kind]
        self.memory = memory
        self.on_left = on_left
        self.position = 0
        self.left = len(memory)

    def next(self, run_bytes: float) -> tuple[Frame, memoryview]:
        """Take the next chunks: about so many bytes, and at least one chunk."""
        start, left = self.position, self.left
        length = self._longest_run_bytes
        if run_bytes < length:
            length = max(int(run_bytes) // self._chunk_bytes, 1) * self._chunk_bytes
        length = min(length, left)
        self.position = start + length
        self.left = left - length
        kind, layout, round_, segment, offset, _, turn = self._first
        return (
            Frame(kind, layout, round_, segment, offset + start, length, turn),
            self.memory[start : start + length],
        )


class SendRate:
    """How fast a connection takes bytes while there are some to write."""

    def __init__(self) -> None:
        self._bytes = 0
        self._since_s = 0.0
        self.bytes_per_s = 0.0

    def pause(self) -> None:
        """Begin anew: nothing is there to write."""
        self._since_s = 0.0

    def wrote(self, num_bytes: int, now_s: float) -> bool:
        """Record a frame that was written; return whether there is a new measurement of the rate."""
        if self._since_s == 0.0:
            # What the kernel takes at first it has not sent.
            self._since_s, self._bytes = now_s, 0
            return False
        self._bytes += num_bytes
        elapsed_s = now_s - self._since_s
        if elapsed_s < _RATED_OVER_S:
            return False
        self.bytes_per_s = self._bytes / elapsed_s
        self._since_s, self._bytes = now_s, 0
        return True


class Outbox:
    """Writes parcels, the most urgent chunk first, and a sign of life when there is nothing to write.

    Parameters
    ----------
    on_loss
        Called from the writing thread when the connection breaks.
    """

    def __init__(self, stream: Stream, *, name: str, on_loss: Callable[[Exception], None]) -> None:
        self._stream = stream
        self._on_loss = on_loss
        self._beat_s = min(BEAT_S, stream.silence_s / 2.5)
        self._heap: list[tuple[tuple[int, ...], int, Parcel]] = []
        self._numbers = itertools.count()
        self._rate = SendRate()
        self._wake = threading.Condition(threading.Lock())
        self._ending: Ending = "open"
        self._reason = b""
        self._lost = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, urgency: tuple[int, ...], parcel: Parcel) -> None:
        """Write a parcel; smaller urgencies overtake larger ones at every chunk."""
        with self._wake:
            heapq.heappush(self._heap, (urgency, next(self._numbers), parcel))
            self._wake.notify()

    def finish(self) -> None:
        """Write what is there, say goodbye, and end the writing; returns at once."""
        self._end("finishing")

    def abort(self, reason: str, *, lost: bool = False) -> None:
        """Drop what is there, say why, and end the connection; returns at once.

        Parameters
        ----------
        lost
            Whether the reason is the loss of a connection.
        """
        if self._ending in ("open", "finishing"):
            self._reason = reason.encode()[:_LONGEST_REASON]
            self._lost = lost
        self._end("aborting")

    def drop(self) -> None:
        """End the connection without a word; returns at once."""
        self._end("lost")
        self._stream.shutdown()

    def _end(self, ending: Ending) -> None:
        with self._wake:
            if self._ending in ("open", "finishing"):
                self._ending = ending
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the writing to end; return whether it has."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        except Exception as error:  # whatever it is, the owner learns of it
            with self._wake:
                expected = self._ending != "open"
                self._ending = "lost"
                self._heap.clear()
            self._stream.shutdown()
            if not expected:
                self._on_loss(error)

    def _write_next(self) -> bool:
        if not self._heap and self._ending == "open":
            self._wait_for_work()
        if self._ending in ("open", "finishing"):
            self._stream.wait_writable()
        chosen: tuple[Frame, memoryview] | None = None
        on_left: Callable[[], None] | None = None
        with self._wake:
            ending = self._ending
            if self._heap and ending in ("open", "finishing"):
                parcel = self._heap[0][-1]
                chosen = parcel.next(self._rate.bytes_per_s * _FRAME_S)
                if not parcel.left:
                    heapq.heappop(self._heap)
                    on_left = parcel.on_left
            else:
                self._heap.clear()
        if chosen is not None:
            self._stream.write(*chosen)
            if self._rate.wrote(chosen[0].length, time.monotonic()):
                self._stream.expect_rate(self._rate.bytes_per_s)
            if on_left is not None:
                self._stream.wait_writable()
                on_left()
        elif ending == "open":
            self._stream.write(Frame(FrameKind.PING))
        else:
            self._last_words(ending)
            return False
        return True

    def _wait_for_work(self) -> None:
        self._rate.pause()
        with self._wake:
            if not self._heap and self._ending == "open":
                self._wake.wait(self._beat_s)

    def _last_words(self, ending: Ending) -> None:
        if ending == "finishing":
            self._stream.write(Frame(kind=FrameKind.BYE))
            self._stream.end_writing()
        elif ending == "aborting":
            with contextlib.suppress(OSError):
                last = Frame(kind=FrameKind.ABORT, length=len(self._reason), turn=int(self._lost))
                self._stream.write(last, self._reason)
            self._stream.end_writing()
