"""How the engine fails: what blocks the host has a time-out, and the first failure ends every wait."""

import threading
import time
from collections.abc import Callable, Sequence

from pace.errors import CommunicationFailed
from pace.runtime.engine.plan import PlannedGroup
from pace.runtime.engine.prepared_groups import PreparedGroups
from pace.runtime.engine.send_queues import SendQueue
from pace.runtime.engine.sends import GroupSend
from pace.runtime.engine.transport_calls import described, word_for
from pace.runtime.transports.transport import Transport, reason_of


class EngineFailure:
    """The part of the engine that blocks the host, and that fails."""

    _transport: Transport
    _timeout_s: float
    _stall_s: float
    _on_stall: Callable[[int], None] | None
    _explain: Callable[[], str] | None
    _groups: Sequence[PlannedGroup]
    _group_sends: Sequence[GroupSend]
    _lock: threading.Lock
    _ended: threading.Condition
    _send_queues: Sequence[SendQueue]
    _prepared: PreparedGroups
    _asides: set[threading.Event]
    _closed: bool
    _failure: CommunicationFailed | None
    _explained: bool

    @property
    def failure(self) -> CommunicationFailed | None:
        """The first failure, or None; nothing is sent after it."""
        return self._failure

    def _block(self, send: GroupSend, until: threading.Event) -> None:
        start = time.monotonic()
        stalled = False
        while True:
            waited_s = time.monotonic() - start
            if waited_s >= self._timeout_s:
                self._fail(f"did not end within {self._timeout_s:g} s", send, None)
                return
            next_s = self._timeout_s if stalled else self._stall_s
            if until.wait(max(next_s - waited_s, 0.0)):
                return
            if not stalled and time.monotonic() - start >= self._stall_s and self._on_stall is not None:
                self._on_stall(send.number)
            stalled = True

    def _raise_failure(self) -> None:
        assert self._failure is not None
        with self._lock:
            explain = None if self._explained else self._explain
            self._explained = True
        if explain is not None:
            found = explain()
            if found:
                self._failure = CommunicationFailed(f"{self._failure}; {found}")
        raise self._failure

    def abandon(self, failure: CommunicationFailed | None = None) -> None:
        """Abandon what is in flight: nothing more is sent, and every wait raises `failure`, if given."""
        if failure is not None:
            with self._lock:
                if self._failure is None:
                    self._failure, self._explained = failure, True
        self._fail("was abandoned", None, None)

    def _fail(self, what: str, send: GroupSend | None, error: BaseException | None) -> None:
        kind = "all-reduce" if send is None else word_for(self._groups[send.number].exchange)
        subject = f"an {kind}" if send is None else f"the {kind} of {self.describe(send.number)}"
        cause = "" if error is None else f": {reason_of(error)}"
        with self._lock:
            if self._failure is None:
                self._failure = CommunicationFailed(
                    f"rank {self._transport.rank} of {self._transport.size}: {subject} {what}{cause}"
                )
                self._failure.__cause__ = error
            for waiting in self._group_sends:
                waiting.sent.set()
                waiting.done.set()
            for ended in self._asides:
                ended.set()
            self._wake_all()

    def describe(self, group: int) -> str:
        """Return a group's name for messages."""
        return described(group, self._groups[group])

    def _stopped(self) -> bool:
        return self._closed or self._failure is not None

    def _wake_all(self) -> None:
        for queue in self._send_queues:
            queue.wake.notify_all()
        self._prepared.notify()
        self._ended.notify_all()
