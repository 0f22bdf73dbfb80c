"""A parameter server: listens, lets in who knows the token, and keeps one session for each job.

One thread accepts; every worker has one that reads and one that writes. Nothing is allocated for a caller
before it has proved that it knows the token.
"""

import contextlib
import socket
import ssl
import threading
import time
from types import TracebackType

import numpy as np

from pace.errors import InvalidOptions
from pace.runtime.event_log import log
from pace.runtime.servers.session import Session
from pace.wire.addresses import is_loopback as is_loopback
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.handshake import answer
from pace.wire.streams import Stream, stream_of

# A caller that does not finish its hello in this time is dropped.
_HELLO_S = 10.0
_MOST_CALLERS = 256
_MOST_SESSIONS = 64


class Server:
    """Sums and holds tensors for jobs; listening from the start.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one. Beyond this machine's loopback only with a token.
    workers
        How many workers a job has; None takes what the first one says.
    token
        What workers must know.
    ssl_context
        Of a server; None for connections in the clear.
    most_bytes
        How many bytes of tensors a job may put here.

    Raises
    ------
    InvalidOptions
        When it may not, or cannot, listen there.
    """

    session_type: type[Session] = Session

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        workers: int | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        most_bytes: int = 1 << 36,
    ) -> None:
        if not token and not is_loopback(host):
            raise InvalidOptions(
                f"a server on {host} can be reached from other machines: give it a token, or let it listen on"
                " 127.0.0.1"
            )
        self._workers = workers
        self._token = token
        self._ssl_context = ssl_context
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._callers: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self.sessions: dict[str, Session] = {}
        self._closed = False
        try:
            self._socket = socket.create_server((host, port), backlog=512)
        except OSError as error:
            raise InvalidOptions(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.host, self.port = self._socket.getsockname()[:2]
        self._accepting = threading.Thread(target=self._accept, name="pace.server", daemon=True)
        self._accepting.start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return f"{self.host}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, caller = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # out of descriptors, say: it may pass
                continue
            with self._lock:
                if self._closed or len(self._threads) >= _MOST_CALLERS + sum(
                    session.size for session in self.sessions.values()
                ):
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._receive,
                    args=(connection, f"{caller[0]}:{caller[1]}"),
                    name="pace.server.in",
                    daemon=True,
                )
                self._threads.add(thread)
            thread.start()

    def _receive(self, connection: socket.socket, caller: str) -> None:
        try:
            self._let_in(connection, caller)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _let_in(self, connection: socket.socket, caller: str) -> None:
        try:
            stream = stream_of(connection, self._ssl_context, silence_s=_HELLO_S)
        except OSError as error:
            log.warning("pace.caller_refused", caller=caller, reason=str(error))
            return
        late = threading.Timer(_HELLO_S, stream.shutdown)
        late.daemon = True
        late.start()
        with self._lock:
            self._callers.add(stream)
        try:
            greeting, welcome = answer(stream, self._token)
            stream.set_silence(min(max(greeting.silence_s, 1.0), 600.0))
            if greeting.pacing_bytes_per_s is not None:
                stream.set_pacing(greeting.pacing_bytes_per_s)
            session = self._session(greeting.job, greeting.size)
            member = session.join(greeting, stream, welcome)
        except Exception as error:  # a caller's mistakes are not the server's end
            log.warning("pace.caller_refused", caller=caller, reason=str(error))
            if isinstance(error, WireFault):
                reason = str(error).encode()[:1000]
                with contextlib.suppress(OSError):
                    stream.write(Frame(kind=FrameKind.ABORT, length=len(reason)), reason)
            late.cancel()
            with self._lock:
                self._callers.discard(stream)
            stream.shutdown()
            stream.close()
            return
        late.cancel()
        with self._lock:
            self._callers.discard(stream)
        with np.errstate(all="ignore"):  # sums of scaled gradients overflow, which is the workers' business
            session.serve(member)

    def _session(self, job: str, size: int) -> Session:
        if self._workers is not None and size != self._workers:
            raise WireFault(f"a job of {size} workers; this server expects {self._workers}")
        with self._lock:
            if self._closed:
                raise WireFault("the server is closing")
            if job not in self.sessions:
                if len(self.sessions) >= _MOST_SESSIONS:
                    raise WireFault(f"{_MOST_SESSIONS} jobs are here already")
                self.sessions[job] = self.session_type(
                    job, size, most_bytes=self._most_bytes, on_end=self._end
                )
            return self.sessions[job]

    def wait_for_ends(self, within_s: float) -> bool:
        """Wait until every job here has ended, and return whether they have."""
        deadline = time.monotonic() + within_s
        while self.sessions and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.sessions

    def _end(self, session: Session) -> None:
        # Without the lock: a session calls this with its own held.
        self.sessions.pop(session.job, None)

    def close(self, *, reason: str | None = None, within_s: float = 5.0) -> None:
        """Stop listening, give workers what is due to them, and end all connections; idempotent.

        Parameters
        ----------
        reason
            Why jobs fail here; None where they may have ended.
        within_s
            How long to wait for workers to take what is due to them.
        """
        with self._lock:
            self._closed = True
            sessions, callers = list(self.sessions.values()), list(self._callers)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in callers:
            stream.shutdown()
        for session in sessions:
            if reason is None:
                session.finish()
            else:
                session.abort(reason)
        deadline = time.monotonic() + within_s
        self._join(deadline)
        for session in sessions:
            session.drop()
        self._join(time.monotonic() + 1.0)
        self._accepting.join(1.0)

    def _join(self, deadline: float) -> None:
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
