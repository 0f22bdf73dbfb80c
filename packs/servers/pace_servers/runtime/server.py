"""A parameter server: it listens, admits workers that know the token, and keeps one session for each job.

One thread accepts connections. Each worker has one thread that reads and one that writes. Nothing is
allocated for a caller before it has proved that it knows the token.
"""

import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pace.runtime.closing import Closing
from pace.runtime.event_log import note_refusal
from pace.wire.frames import WireFault
from pace.wire.handshake import Greeting
from pace.wire.meeting import Listener
from pace.wire.streams import Stream
from pace_servers.runtime.session import Session

_MOST_CALLERS = 256
_MOST_SESSIONS = 64
# A server that closes waits this long until workers have received their results.
_LAST_RESULTS_S = 5.0


class Server(Closing):
    """Sums and holds tensors for jobs. It listens when it is created.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one. Beyond this machine's loopback only with a token.
    workers
        Number of workers of a job; None for the number in the first worker's greeting.
    token
        The secret that workers must know.
    ssl_context
        TLS settings of the server; None for unencrypted connections.
    most_bytes
        The most bytes of tensors that a job may have here.
    checkpoints
        Folder in which jobs may save tables; None for no checkpoints.

    Raises
    ------
    InvalidOptions
        If it must not, or cannot, listen there.
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
        checkpoints: Path | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._workers = workers
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self.sessions: dict[str, Session] = {}
        self._closed = False
        self._listener = Listener(
            host,
            port,
            self._let_in,
            on_refusal=note_refusal,
            token=token,
            ssl_context=ssl_context,
            most_callers=_MOST_CALLERS,
        )
        self.host, self.port = self._listener.host, self._listener.port

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return self._listener.address

    def _let_in(self, stream: Stream, greeting: Greeting, welcome: bytes, _caller: str) -> Callable[[], None]:
        session = self._session(greeting.job, greeting.size)
        member = session.join(greeting, stream, welcome)

        def serve() -> None:
            # Sums of scaled gradients may overflow. The workers handle that.
            with np.errstate(all="ignore"):
                session.serve(member)

        return serve

    def _session(self, job: str, size: int) -> Session:
        if self._workers is not None and size != self._workers:
            raise WireFault(f"a job of {size} workers; this server expects {self._workers}")
        with self._lock:
            if self._closed:
                raise WireFault("the server is closing")
            if job not in self.sessions:
                if len(self.sessions) >= _MOST_SESSIONS:
                    raise WireFault(f"this server already has {_MOST_SESSIONS} jobs, as many as it takes")
                self.sessions[job] = self.session_type(
                    job,
                    size,
                    most_bytes=self._most_bytes,
                    on_end=self._end,
                    checkpoints=self._checkpoints,
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

    def close(self, *, reason: str | None = None) -> None:
        """Stop listening, send workers their remaining results, and end all connections. Idempotent.

        Parameters
        ----------
        reason
            Why jobs fail here; None if they may have ended.
        """
        with self._lock:
            self._closed = True
            sessions = list(self.sessions.values())
        self._listener.stop()
        for session in sessions:
            if reason is None:
                session.finish()
            else:
                session.abort(reason)
        self._listener.join(_LAST_RESULTS_S)
        for session in sessions:
            session.drop()
        self._listener.join(1.0)
