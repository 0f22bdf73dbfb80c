"""What is to be written to one connection: chosen afresh before every chunk, written by one thread.

A chunk is chosen only when the kernel has little left to send, so an urgent one waits for no more than that,
however much was put in before it.
"""

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Literal

from pace.runtime.parameter_server.streams import BEAT_S, Stream
from pace.runtime.parameter_server.wire import Frame, FrameKind

Ending = Literal["open", "finishing", "aborting", "lost"]

_LONGEST_REASON = 2000


class Parcel:
    """A stretch of memory on its way, chunk by chunk; its first frame says what it is.

    Parameters
    ----------
    on_left
        Called from the writing thread when all of it has left but what the kernel may hold unsent.
    """

    __slots__ = ("chunk_bytes", "first", "memory", "on_left", "position")

    def __init__(
        self,
        first: Frame,
        memory: memoryview,
        chunk_bytes: int,
        on_left: Callable[[], None] | None = None,
    ) -> None:
        self.first = first
        self.memory = memory
        self.chunk_bytes = chunk_bytes
        self.on_left = on_left
        self.position = 0

    def next(self) -> tuple[Frame, memoryview]:
        """Take the next chunk."""
        start, first = self.position, self.first
        part = self.memory[start : start + self.chunk_bytes]
        self.position += len(part)
        frame = Frame(
            kind=first.kind,
            layout=first.layout,
            round=first.round,
            segment=first.segment,
            offset=first.offset + start,
            length=len(part),
            turn=first.turn,
        )
        return frame, part


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
        self._wake = threading.Condition()
        self._ending: Ending = "open"
        self._reason = b""
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

    def abort(self, reason: str) -> None:
        """Drop what is there, say why, and end the connection; returns at once."""
        self._reason = reason.encode()[:_LONGEST_REASON]
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
        with self._wake:
            something = self._wake.wait_for(lambda: self._heap or self._ending != "open", self._beat_s)
        if self._ending in ("open", "finishing"):
            self._stream.wait_writable()
        with self._wake:
            ending = self._ending
            chosen: tuple[Frame, memoryview] | None = None
            on_left: Callable[[], None] | None = None
            if ending in ("open", "finishing") and self._heap:
                parcel = self._heap[0][-1]
                chosen = parcel.next()
                if parcel.position >= len(parcel.memory):
                    heapq.heappop(self._heap)
                    on_left = parcel.on_left
            else:
                self._heap.clear()
        if chosen is not None:
            self._stream.write(*chosen)
            if on_left is not None:
                self._stream.wait_writable()
                on_left()
        elif ending == "open":
            if not something:
                self._stream.write(Frame(kind=FrameKind.PING))
        else:
            self._last_words(ending)
            return False
        return True

    def _last_words(self, ending: Ending) -> None:
        if ending == "finishing":
            self._stream.write(Frame(kind=FrameKind.BYE))
            self._stream.end_writing()
        elif ending == "aborting":
            with contextlib.suppress(OSError):
                self._stream.write(Frame(kind=FrameKind.ABORT, length=len(self._reason)), self._reason)
            self._stream.end_writing()
