"""How connections come about: one end calls, the other listens; both prove that they know the token."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable

from pace.errors import CommunicationFailed, InvalidOptions
from pace.wire.addresses import ServerAddress, is_loopback
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.handshake import Greeting, answer, call
from pace.wire.streams import NOTSENT_BYTES, Stream, stream_of

# A caller that does not finish its hello in this time is dropped.
_HELLO_S = 10.0
_LEAST_SILENCE_S, _LONGEST_SILENCE_S = 1.0, 600.0
_RETRY_S = 0.1
# A caller that has waited so long for somebody to listen is told.
_QUIET_S = 5.0


def connect(
    address: ServerAddress,
    greeting: Greeting,
    *,
    token: str | None,
    within_s: float,
    hello_s: float | None = None,
    ssl_context: ssl.SSLContext | None = None,
    notsent_bytes: int = NOTSENT_BYTES,
    on_wait: Callable[[str], None] | None = None,
) -> Stream:
    """Call a process that may only be about to listen.

    Parameters
    ----------
    within_s
        How long to try to connect.
    hello_s
        How long the other end may take at least to introduce itself once it is connected: until then, or the
        end of `within_s`. Unless given, it may take longer, and say nothing for what is left of `within_s`.
    on_wait
        Called once with the reason if nobody listens for some seconds; then tries go on.

    Raises
    ------
    CommunicationFailed
        When there is nobody, or it refuses; the message names it.
    """
    deadline = time.monotonic() + within_s
    told_at = time.monotonic() + _QUIET_S
    while True:
        try:
            left_s = max(deadline - time.monotonic(), 0.01)
            connection = socket.create_connection((address.host, address.port), left_s)
            break
        except OSError as error:
            if time.monotonic() + _RETRY_S >= deadline:
                raise CommunicationFailed(
                    f"{address.name} at {address.host}:{address.port} did not answer within {within_s:g} s:"
                    f" {error}"
                ) from error
            if on_wait is not None and time.monotonic() >= told_at:
                on_wait(str(error))
                on_wait = None
            time.sleep(_RETRY_S)
    left_s = max(deadline - time.monotonic(), hello_s or 0.0, 0.01)
    introduced_by = time.monotonic() + left_s
    try:
        stream = stream_of(
            connection,
            ssl_context,
            silence_s=left_s,
            server_name=address.host,
            notsent_bytes=notsent_bytes,
        )
    except OSError as error:
        raise CommunicationFailed(f"{address.name} cannot be trusted: {error}") from error
    late = threading.Timer(max(introduced_by - time.monotonic(), 0.0), stream.shutdown)
    late.daemon = True
    if hello_s is not None:  # signs of life must not prolong it
        late.start()
    try:
        call(stream, token, greeting, address.name)
        stream.set_silence(greeting.silence_s)
    except (CommunicationFailed, WireFault, EOFError, OSError) as error:
        stream.close()
        raise CommunicationFailed(f"{address.name}: {error}") from error
    finally:
        late.cancel()
    return stream


class Listener:
    """Lets in callers who know the token; listening from the start. Every caller has a thread of its own.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one. Beyond this machine's loopback only with a token.
    let_in
        Called with the stream, who calls, the payload of the WELCOME that is due to it, and its address; an
        error refuses the caller. What it returns is called afterwards, on the caller's thread.
    on_refusal
        Called with a caller's address and why it was refused.
    most_callers
        How many may be introducing themselves at once.

    Raises
    ------
    InvalidOptions
        When it may not, or cannot, listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        let_in: Callable[[Stream, Greeting, bytes, str], Callable[[], None] | None],
        *,
        on_refusal: Callable[[str, Exception], None],
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        most_callers: int = 1024,
    ) -> None:
        if not token and not is_loopback(host):
            raise InvalidOptions(
                f"a process on {host} can be reached from other machines: give it a token (--token-file, or"
                " token= in Python), or let it listen on 127.0.0.1"
            )
        self._token, self._ssl_context, self._most_callers = token, ssl_context, most_callers
        self._let_in, self._on_refusal = let_in, on_refusal
        self._closed = False
        self._lock = threading.Lock()
        self._callers: dict[threading.Thread, Stream | None] = {}
        self._serving: set[threading.Thread] = set()
        try:
            self._socket = socket.create_server((host, port), backlog=512)
        except OSError as error:
            raise InvalidOptions(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.host, self.port = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="pace.listen", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return f"{self.host}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, (host, port, *_) = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # out of descriptors, say: it may pass
                continue
            thread = threading.Thread(
                target=self._receive, args=(connection, f"{host}:{port}"), name="pace.in", daemon=True
            )
            with self._lock:
                if self._closed or len(self._callers) >= self._most_callers:
                    connection.close()
                    continue
                self._callers[thread] = None
            thread.start()

    def _receive(self, connection: socket.socket, caller: str) -> None:
        thread = threading.current_thread()
        try:
            serve = self._introduce(connection, caller)
            with self._lock:
                del self._callers[thread]
                self._serving.add(thread)
            if serve is not None:
                serve()
        finally:
            with self._lock:
                self._callers.pop(thread, None)
                self._serving.discard(thread)

    def _introduce(self, connection: socket.socket, caller: str) -> Callable[[], None] | None:
        try:
            stream = stream_of(connection, self._ssl_context, silence_s=_HELLO_S)
        except OSError as error:
            self._on_refusal(caller, error)
            return None
        late = threading.Timer(_HELLO_S, stream.shutdown)
        late.daemon = True
        late.start()
        with self._lock:
            self._callers[threading.current_thread()] = stream
        try:
            greeting, welcome = answer(stream, self._token)
            stream.set_silence(min(max(greeting.silence_s, _LEAST_SILENCE_S), _LONGEST_SILENCE_S))
            if greeting.pacing_bytes_per_s is not None:
                stream.set_pacing(greeting.pacing_bytes_per_s)
            return self._let_in(stream, greeting, welcome, caller)
        except Exception as error:  # a caller's mistakes are not the process's end
            self._on_refusal(caller, error)
            if isinstance(error, WireFault):
                reason = str(error).encode()[:1000]
                with contextlib.suppress(OSError):
                    stream.write(Frame(kind=FrameKind.ABORT, length=len(reason)), reason)
            stream.shutdown()
            stream.close()
            return None
        finally:
            late.cancel()

    def stop(self) -> None:
        """Stop listening; callers that are introducing themselves are dropped."""
        with self._lock:
            self._closed = True
            callers = list(self._callers.values())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in callers:
            if stream is not None:
                stream.shutdown()
        self._thread.join(2.0)

    def join(self, within_s: float) -> None:
        """Wait for the threads of all callers."""
        deadline = time.monotonic() + within_s
        with self._lock:
            threads = [*self._callers, *self._serving]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
