"""A worker's link to one server, with the segments that are pushed and not pulled back; two threads."""

import contextlib
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pace.errors import CommunicationFailed
from pace.runtime.event_log import log
from pace.runtime.transports.runs import Runs
from pace.wire.addresses import ServerAddress
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.handshake import Greeting
from pace.wire.meeting import connect
from pace.wire.outbox import Outbox, Parcel
from pace.wire.streams import NOTSENT_BYTES
from pace_servers.runtime.layout import Layout, bits_of
from pace_servers.runtime.sparse_frames import parcel_of, read_runs


@dataclass(slots=True, kw_only=True)
class PushPullCall:
    """A segment that is pushed and pulled back into the same memory.

    Attributes
    ----------
    done
        Called once, in any thread, with None when all chunks are back, or with the error.
    on_left
        Called once the push has been sent; see ``Parcel``.
    received
        Memory that gets the result first and keeps it; None if only `memory` gets it.
    missing
        A number with a bit for each chunk that is not back.
    runs
        The elements of `memory` that may be nonzero; None for all.
    """

    segment: int
    round: int
    memory: memoryview
    done: Callable[[BaseException | None], None]
    kind: FrameKind = FrameKind.PUSH
    on_left: Callable[[], None] | None = None
    received: memoryview | None = None
    missing: int = 0
    runs: Runs | None = None


class Countdown:
    """Waits for a number of exchanges, or until one of them fails."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def one(self, error: BaseException | None) -> None:
        """Record the end of one exchange."""
        with self._lock:
            self._count -= 1
            self._error = self._error or error
            if self._count <= 0 or self._error is not None:
                self._over.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until all have ended.

        Raises
        ------
        CommunicationFailed
            If one has failed, or not all have ended within the time-out.
        """
        if not self._over.wait(timeout_s):
            raise CommunicationFailed(f"servers did not answer within {timeout_s:g} s")
        if isinstance(self._error, CommunicationFailed):
            raise self._error
        if self._error is not None:
            raise CommunicationFailed(str(self._error)) from self._error


class ServerLink:
    """A link to one server. The constructor connects, sends the greeting and starts the threads.

    Parameters
    ----------
    on_failure
        Called, in any thread, with the reason when the link breaks or the server ends the job.
    on_loss
        Called instead if only a connection was lost, this one or another worker's.
    within_s
        How long to try to connect, in seconds: servers may start later than workers.
    notsent_bytes
        See ``Stream``.

    Attributes
    ----------
    gone
        Whether the connection broke or the server is silent.
    left
        Whether the server said goodbye.

    Raises
    ------
    CommunicationFailed
        If there is no server, or it refuses; the message names the server.
    """

    def __init__(
        self,
        address: ServerAddress,
        greeting: Greeting,
        *,
        token: str | None,
        on_failure: Callable[[str], None],
        on_loss: Callable[[str], None] | None = None,
        within_s: float,
        pacing_bytes_per_s: float | None = None,
        ssl_context: ssl.SSLContext | None = None,
        notsent_bytes: int = NOTSENT_BYTES,
    ) -> None:
        self.address = address
        self._on_failure = on_failure
        self._on_loss = on_loss or on_failure
        self._lock = threading.Lock()
        self._pending: dict[int, PushPullCall] = {}
        self._layout: Layout | None = None
        self._number = -1
        self._over = False
        self.gone = self.left = False
        self._stream = connect(
            address,
            greeting,
            token=token,
            within_s=within_s,
            ssl_context=ssl_context,
            notsent_bytes=notsent_bytes,
            on_wait=lambda reason: log.warning(
                "pace.server_awaited", server=address.name, reason=reason, within_s=within_s
            ),
        )
        self._pacing_bytes_per_s = pacing_bytes_per_s
        self._stream.set_pacing(pacing_bytes_per_s)
        self._outbox = Outbox(self._stream, name="pace.link.out", on_loss=self._lost)
        self._thread = threading.Thread(target=self._read, name="pace.link.in", daemon=True)
        self._thread.start()

    @property
    def pacing_bytes_per_s(self) -> int | None:
        """The highest rate at which this end sends, from the kernel, in bytes/s; None without a limit."""
        return self._stream.pacing_bytes_per_s

    def announce(self, layout: Layout) -> None:
        """Use another layout from now on; nothing of the previous one may be in flight."""
        self._number = (self._number + 1) % (1 << 16)
        self._layout = layout
        pace = layout.pace_bytes_per_s
        self._stream.set_pacing(self._pacing_bytes_per_s if pace is None else pace)
        first = Frame(kind=FrameKind.LAYOUT, layout=self._number)
        document = memoryview(layout.document)
        self._outbox.put((-1,), Parcel(first, document))

    def start(self, exchange: PushPullCall) -> None:
        """Push a segment; returns at once."""
        layout = self._layout
        assert layout is not None
        with self._lock:
            over = self._over
            if not over:
                assert exchange.segment not in self._pending, "the segment is in flight"
                exchange.missing = (1 << layout.num_chunks(exchange.segment)) - 1
                self._pending[exchange.segment] = exchange
        if over:
            exchange.done(CommunicationFailed(f"{self.address.name} has left the training"))
            return
        turn = layout.segments[exchange.segment].turn
        first = Frame(
            kind=exchange.kind,
            layout=self._number,
            round=exchange.round,
            segment=exchange.segment,
            turn=turn,
        )
        self._outbox.put(
            self._urgency(exchange, turn),
            parcel_of(first, exchange.memory, exchange.runs, layout, exchange.on_left),
        )

    def is_under_way(self, segment: int) -> bool:
        """Return whether a segment was pushed and is not back."""
        return segment in self._pending

    def _urgency(self, exchange: PushPullCall, turn: int) -> tuple[int, ...]:
        return exchange.round, turn, exchange.segment

    def _read(self) -> None:
        try:
            while self._take(self._stream.read()):
                pass
        except WireFault as error:
            self._fail(f"{self.address.name} breaks the protocol: {error}")
        except Exception as error:  # any error is passed on to waiting threads
            self._lost(error)

    def _take(self, frame: Frame) -> bool:
        if frame.kind is FrameKind.PULL:
            self._receive(frame)
        elif frame.kind is FrameKind.PULL_RUNS:
            self._receive_runs(frame)
        elif frame.kind is FrameKind.ABORT:
            reason = self._stream.read_payload(frame.length).decode(errors="replace")
            self._fail(reason, lost=frame.turn == 1)
            return False
        elif frame.kind is FrameKind.BYE:
            with self._lock:
                self._over = self.left = True
                pending = bool(self._pending)
            if pending:
                self._fail(f"{self.address.name} has left the training", lost=True)
            self._outbox.finish()
            return False
        elif frame.kind is not FrameKind.PING:
            raise WireFault(f"a {frame.kind.name} frame from a server")
        return True

    def _under_way(self, frame: Frame) -> tuple[PushPullCall, Layout]:
        """Return the call and the layout that a frame belongs to."""
        exchange = self._pending.get(frame.segment)
        if exchange is None and self._over:  # ended while this was on its way: nobody breaks the protocol
            raise EOFError("the link has ended")
        if self._layout is None or frame.layout != self._number or exchange is None:
            raise WireFault(f"a chunk of segment {frame.segment}, which is not under way")
        return exchange, self._layout

    def _due_bits(self, exchange: PushPullCall, frame: Frame, chunks: range) -> int:
        bits = bits_of(chunks)
        if frame.round != exchange.round or exchange.missing & bits != bits:
            raise WireFault(
                f"chunk {chunks.start} of segment {frame.segment} for round {frame.round}: it is not due"
            )
        return bits

    def _receive_runs(self, frame: Frame) -> None:
        exchange, layout = self._under_way(frame)
        if frame.length > layout.longest_run_bytes:
            raise WireFault(f"runs in {frame.length} bytes; at most {layout.longest_run_bytes} are allowed")
        chunks, runs, values = read_runs(frame, memoryview(self._stream.read_payload(frame.length)), layout)
        bits = self._due_bits(exchange, frame, chunks)
        # This worker's push is zero outside of its own runs, and these are among the runs of the sum.
        array: Any = np.frombuffer(exchange.memory, dtype=layout.segments[frame.segment].dtype)
        array[runs.places] = values
        if exchange.received is not None:
            start, end = frame.offset, chunks.stop * layout.chunk_bytes
            exchange.received[start:end] = exchange.memory[start:end]
        self._arrived(exchange, frame, bits)

    def _receive(self, frame: Frame) -> None:
        exchange, layout = self._under_way(frame)
        bits = self._due_bits(exchange, frame, layout.check(frame))
        start, end = frame.offset, frame.offset + frame.length
        if exchange.received is None:
            self._stream.read_into(exchange.memory[start:end])
        else:  # keep what this worker pushed until its sum is complete
            self._stream.read_into(exchange.received[start:end])
            exchange.memory[start:end] = exchange.received[start:end]
        self._arrived(exchange, frame, bits)

    def _arrived(self, exchange: PushPullCall, frame: Frame, bits: int) -> None:
        exchange.missing ^= bits
        if exchange.missing:
            return
        with self._lock:
            mine = self._pending.pop(frame.segment, None)
        if mine is not None:
            mine.done(None)

    def _lost(self, error: Exception) -> None:
        with self._lock:
            ended = self._over and not self._pending
            self._over = True
        if not ended:
            self.gone = True
            self._fail(f"{self.address.name} is gone: {error}", lost=True)

    def _fail(self, reason: str, *, lost: bool = False) -> None:
        (self._on_loss if lost else self._on_failure)(reason)
        self.abort(reason, lost=lost)

    def disown(self) -> None:
        """From now on, do not report how the link ends."""
        self._on_failure = self._on_loss = lambda _reason: None

    def abort(self, reason: str, *, lost: bool = False) -> None:
        """End the link and tell the server why; all waits for segments raise. Idempotent.

        Parameters
        ----------
        lost
            Whether only a connection was lost.
        """
        with self._lock:
            self._over = True
            pending = list(self._pending.values())
            self._pending.clear()
        self._outbox.abort(reason, lost=lost)
        for exchange in pending:
            exchange.done(CommunicationFailed(reason))

    def finish(self) -> None:
        """Say goodbye; nothing may be in flight."""
        with self._lock:
            self._over = True
        self._outbox.finish()

    def close(self, within_s: float = 2.0) -> None:
        """Wait for both threads after ``finish`` or ``abort``, and close the connection."""
        if self.gone:
            self._outbox.drop()
        self._outbox.join(within_s)
        if self._thread is not threading.current_thread():
            self._thread.join(within_s)
        self._outbox.drop()
        self._outbox.join(1.0)
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
        with contextlib.suppress(OSError):
            self._stream.close()
