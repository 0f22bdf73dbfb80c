"""The HTTP server: uvicorn with limits for slow clients, stopped together with the service."""

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import h11
import structlog
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from pace.api.service import Service

log = structlog.get_logger(__name__)

# Beyond the drain, for what comes after it.
_GRACE_S = 7.0
# What is given to a connection at once, and about as much as the system may hold for it unsent. A client must
# read so much of its answer, or what is left, in each time-out.
_PIECE_BYTES = 2**16
_MOST_DESCRIPTORS = 65_536
# Connections that wait until they are accepted, and those accepted in one turn of the event loop. With more,
# descriptors could run out before the oldest unused connections end: nobody is let in for a second.
MOST_WAITING = 2048
ACCEPTED_TOGETHER = 16
# Writes what is received on an idle connection its answer, with the server's own headers; False to leave it.
AtOnce = Callable[[bytes, Iterable[tuple[bytes, bytes]], Callable[[bytes], object]], bool]
NoteSlowReader = Callable[[str | None], object]


class StoppingServer(uvicorn.Server):
    """A server that stops the service at its own stop, not after all connections have ended."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and let as many wait for that as the system allows."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(MOST_WAITING)  # the event loop has set what it accepts in one turn

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop, also because the service can never work."""
        return await super().on_tick(counter) or self.service_failed

    @property
    def service_failed(self) -> bool:
        """Whether the service cannot work; the log has the reason."""
        app: Any = self.config.app
        service = cast("Service | None", getattr(app.state, "service", None))
        return service is not None and service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: the service claims no more tasks and answers all waiting requests before the drain ends."""
        app: Any = self.config.app
        service = cast("Service | None", getattr(app.state, "service", None))
        if service is not None:
            service.begin_stopping()
            end_by_force(service.settings.drain_s + _GRACE_S)
        await super().shutdown(sockets)


def end_by_force(after_s: float) -> None:
    """End this process after a delay if it still runs: a thread may wait for a hung database forever.

    Nothing is lost: other processes take over the tasks, and worker processes end with this one.
    """

    def end() -> None:
        log.error("forced-exit", reason="a thread did not end; the database may hang")
        os._exit(0)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()


class PatientProtocol(H11Protocol):
    """Ends connections that send no complete request in time, or do not read their answers.

    Always uses h11, even if httptools is installed, which has no limit for the head of a request and accepts
    two Host headers.

    Attributes
    ----------
    header_timeout_s
        Seconds in which the head of a request must arrive.
    answer_timeout_s
        Seconds in which a client must read what waits for it.
    most_connections
        Largest number of connections; beyond it, the one without a complete request for longest is ended.
    note_slow_reader
        Called with the address of a client whose connection is ended because it does not read.
    at_once
        Answers some requests before they are parsed, let alone passed to the application.
    """

    header_timeout_s: ClassVar[float]
    answer_timeout_s: ClassVar[float]
    note_slow_reader: ClassVar[NoteSlowReader]
    most_connections: ClassVar[int]
    at_once: ClassVar[AtOnce]
    # In the order in which they came to be without a request.
    unused: "ClassVar[dict[PatientProtocol, None]]"

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._application = cast("Any", self.app)
        self.app = cast("Any", self._answer)

    def connection_made(  # type: ignore[override]  # a server's transports can be written to
        self, transport: asyncio.Transport
    ) -> None:
        """Count the connection; end the oldest unused one if there are too many."""
        super().connection_made(transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            # Otherwise the system would hold megabytes, and slow clients would seem to read nothing.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _PIECE_BYTES)
        transport.set_write_buffer_limits(0)  # to be told as soon as the client has to read, and when it has
        self._note_use()
        if len(self.connections) > self.most_connections:
            oldest = next(iter(self.unused))
            del self.unused[oldest]  # it ends later, and each new connection needs the place of another one
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.unused.pop(self, None)
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received data; from here on the head must be completed in time."""
        general = self.server_state.default_headers
        if self._is_idle() and type(self).at_once(data, general, self.transport.write):
            self.unused.pop(self, None)  # it becomes the last one of them
            self._stop_header_timer()
            self.on_response_complete()
            return
        super().data_received(data)
        self._note_use()

    def _is_idle(self) -> bool:
        """Whether nothing of a request has arrived since the last answer, and the client reads answers."""
        states = self.conn.their_state, self.conn.our_state
        return (
            states == (h11.IDLE, h11.IDLE)
            and not self.conn.trailing_data[0]
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def on_response_complete(self) -> None:
        """Mark the connection as idle."""
        super().on_response_complete()
        if not self._has_request() and not self.transport.is_closing():
            self.unused[self] = None  # its keep-alive timer runs

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be the application; bodies of answers are sent in pieces as the client reads."""

        async def send_in_pieces(message: Message) -> None:
            # The transport copies what the client does not read yet, so it gets one piece at a time.
            rest = memoryview(message.get("body", b""))
            while len(rest) > _PIECE_BYTES:
                await send({**message, "body": rest[:_PIECE_BYTES], "more_body": True})
                rest = rest[_PIECE_BYTES:]
                message = {**message, "body": rest}
            await send(message)

        await self._application(scope, receive, send_in_pieces)

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _note_use(self) -> None:
        if self._has_request() or self.transport.is_closing():
            self.unused.pop(self, None)
            self._stop_header_timer()
            return
        self.unused.setdefault(self)
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._header_timer = None
        if not self._has_request() and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def pause_writing(self) -> None:
        """Give the client a time-out to read what waits for it."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.answer_timeout_s, self._end_slow_reader)

    def resume_writing(self) -> None:
        """Go on: the client has read it."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _end_slow_reader(self) -> None:
        type(self).note_slow_reader(self.client and self.client[0])
        self.transport.abort()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()


def make_protocol(
    header_timeout_s: float,
    answer_timeout_s: float,
    most_connections: int,
    at_once: AtOnce = lambda *_: False,
    note_slow_reader: NoteSlowReader = lambda _: None,
) -> type[asyncio.Protocol]:
    """Return a protocol with these limits, for one server."""
    own = {
        "header_timeout_s": header_timeout_s,
        "answer_timeout_s": answer_timeout_s,
        "note_slow_reader": staticmethod(note_slow_reader),
        "most_connections": most_connections,
        "at_once": staticmethod(at_once),
        "unused": {},
    }
    return type("LimitedProtocol", (PatientProtocol,), own)


def raise_descriptor_limit() -> int:
    """Raise the limit of file descriptors of this process as far as allowed.

    Returns
    -------
    most_connections
        Number of connections that leave enough descriptors for files and the database.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(16, min(soft, _MOST_DESCRIPTORS) - max(128, soft // 8)) if soft > 0 else _MOST_DESCRIPTORS
