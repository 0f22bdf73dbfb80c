"""Connected sockets: their options, and reading and writing whole frames, in the clear or through TLS.

One thread reads a stream and one writes it. Any thread may ``shutdown`` it, which ends both; its owner closes
it when both are done.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence

from pace.wire.frames import HEADER_BYTES, Frame, unpack

# Linux's numbers; Python has no names for them before 3.12 or at all.
_SO_MAX_PACING_RATE = 47
_UNPACED = (1 << 32) - 1
_TCP_USER_TIMEOUT = 18
_TCP_NOTSENT_LOWAT = 25

# What the kernel may hold that it has not sent: what comes later is still free to choose.
NOTSENT_BYTES = 128 << 10

# On a slow connection that would be long: there it is what goes out in this time, but no less than this.
_NOTSENT_S = 4e-3
_LEAST_NOTSENT_BYTES = 16 << 10

# How often a silent side says that it is alive.
BEAT_S = 0.5


class Stream:
    """A connection in the clear.

    Parameters
    ----------
    connection
        Connected; belongs to the stream from now on.
    silence_s
        How long the other end may say nothing before it counts as dead.
    notsent_bytes
        A new chunk is chosen only while the kernel holds fewer bytes that it has not sent. On a connection
        that is known to be slow, fewer suffice.
    """

    def __init__(
        self, connection: socket.socket, *, silence_s: float, notsent_bytes: int = NOTSENT_BYTES
    ) -> None:
        self._socket = connection
        self.silence_s = silence_s
        self._header = bytearray(HEADER_BYTES)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._most_notsent_bytes = self._notsent_bytes = notsent_bytes
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, notsent_bytes)
        self.set_silence(silence_s)
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)

    def set_silence(self, silence_s: float) -> None:
        """Change how long the other end may say nothing."""
        self.silence_s = silence_s
        whole = int(silence_s)
        limit = struct.pack("@ll", whole, int((silence_s - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(silence_s * 1e3))

    def set_pacing(self, bytes_per_s: float | None) -> None:
        """Let the kernel send no faster than this, so that no queue forms where nobody can reorder it."""
        rate = _UNPACED if bytes_per_s is None else int(min(max(bytes_per_s, 1), _UNPACED))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("@I", rate))
        if bytes_per_s is not None:
            self.expect_rate(bytes_per_s)

    def expect_rate(self, bytes_per_s: float) -> None:
        """Leave the kernel no more unsent than keeps a connection busy that sends at this rate."""
        wanted = int(min(max(bytes_per_s * _NOTSENT_S, _LEAST_NOTSENT_BYTES), self._most_notsent_bytes))
        # Rates that are measured change a little all the time.
        if (
            abs(wanted - self._notsent_bytes) * 4 > self._notsent_bytes
            or wanted == self._most_notsent_bytes != self._notsent_bytes
        ):
            self._notsent_bytes = wanted
            self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, wanted)

    @property
    def notsent_bytes(self) -> int:
        """What the kernel may hold unsent at the moment."""
        return self._notsent_bytes

    @property
    def pacing_bytes_per_s(self) -> int | None:
        """How fast the kernel says that it sends at most; None where there is no limit."""
        (rate,) = struct.unpack("@I", self._socket.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 4))
        return None if rate == _UNPACED else int(rate)

    @property
    def carried_bytes(self) -> tuple[int, int]:
        """How many bytes the kernel has sent and seen acknowledged, and how many it has received."""
        # Linux's struct tcp_info: tcpi_bytes_acked and tcpi_bytes_received.
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        acknowledged, received = struct.unpack_from("@QQ", info, 120)
        return acknowledged, received

    def read(self) -> Frame:
        """Read the next frame's header.

        Raises
        ------
        WireFault
            When it is no frame.
        EOFError, TimeoutError, OSError
            When the other end is gone or says nothing.
        """
        self.read_into(memoryview(self._header))
        return unpack(self._header)

    def read_payload(self, length: int) -> bytearray:
        """Read a payload whose length was checked."""
        payload = bytearray(length)
        self.read_into(memoryview(payload))
        return payload

    def read_into(self, view: memoryview) -> None:
        """Fill a view; see ``read``."""
        left = len(view)
        while left:
            count = self._receive(view)
            if count == left:
                return
            if count == 0:
                raise EOFError("the connection ended")
            left -= count
            view = view[count:]

    def _receive(self, view: memoryview) -> int:
        try:
            # The kernel waits for all of it: packets that come one by one do not wake the interpreter.
            return self._socket.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError(f"no sign of life for {self.silence_s:g} s") from None

    def wait_writable(self) -> None:
        """Wait until the kernel has little left to send: then is the time to choose what goes next."""
        while not self._writable.poll(1000):
            pass

    def write(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        """Write a frame and its payload whole."""
        parts: list[bytes | memoryview] = [frame.pack()] if payload is None else [frame.pack(), payload]
        left = sum(map(len, parts))
        while True:
            sent = self._send(parts)
            left -= sent
            if not left:
                return
            if sent == 0:
                self.wait_writable()
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]

    def _send(self, parts: Sequence[bytes | memoryview]) -> int:
        try:
            return self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def shutdown(self) -> None:
        """End both directions; reads and writes in progress raise. Idempotent; any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end_writing(self) -> None:
        """Tell the other end that nothing more comes; what it sends can still be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the descriptor back; nobody reads or writes any more."""
        self._socket.close()


class TlsStream(Stream):
    """A connection through TLS, whose state only one thread may touch at a time."""

    def __init__(
        self, connection: ssl.SSLSocket, *, silence_s: float, notsent_bytes: int = NOTSENT_BYTES
    ) -> None:
        super().__init__(connection, silence_s=silence_s, notsent_bytes=notsent_bytes)
        connection.setblocking(False)
        self._tls = connection
        self._lock = threading.Lock()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def _receive(self, view: memoryview) -> int:
        while True:
            with self._lock:
                try:
                    return self._tls.recv_into(view)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                except ssl.SSLEOFError:
                    return 0
            if not self._readable.poll(self.silence_s * 1e3):
                raise TimeoutError(f"no sign of life for {self.silence_s:g} s")

    def _send(self, parts: Sequence[bytes | memoryview]) -> int:
        with self._lock:
            try:
                return self._tls.send(parts[0])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0

    def end_writing(self) -> None:
        """Leave it to ``shutdown``: TLS has no half-closed connections."""


def stream_of(
    connection: socket.socket,
    context: ssl.SSLContext | None,
    *,
    silence_s: float,
    server_name: str | None = None,
    notsent_bytes: int = NOTSENT_BYTES,
) -> Stream:
    """Make a stream of a connected socket, which is closed when that fails.

    Parameters
    ----------
    server_name
        The server that this side connected to; None on the side that accepted.
    """
    try:
        if context is None:
            return Stream(connection, silence_s=silence_s, notsent_bytes=notsent_bytes)
        connection.settimeout(silence_s)
        secured = context.wrap_socket(
            connection, server_side=server_name is None, server_hostname=server_name
        )
        return TlsStream(secured, silence_s=silence_s, notsent_bytes=notsent_bytes)
    except BaseException:
        connection.close()
        raise
