"""What a worker calls: push an update and get a ticket, get a model, take part in a weighted mean."""

import os
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.closing import Closing
from pace.runtime.fabric.commit_log import Vector
from pace.runtime.fabric.connection import FabricLink, Incoming, connect
from pace.runtime.fabric.messages import Message, ModelCall, PushCall, TicketOrder, TransferIntro
from pace.runtime.fabric.sparse_update import SparseUpdate
from pace.runtime.fabric.update_records import HeldUpdate, update_id
from pace.wire.addresses import ServerAddress

UpdateKind = Literal["gradient", "pseudo-gradient", "delta", "rollouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEnd:
    """How an update ended.

    Attributes
    ----------
    outcome
        "committed", "dropped" (late; not sent again) or "failed" (the fabric could not).
    version
        Version of the model just after the commit, if there was one.
    delay
        Commits between the model that it was computed from and its own.
    reason, witness
        Why it was dropped or failed, and the updates that are why.
    """

    outcome: Literal["committed", "dropped", "failed"]
    version: int | None = None
    delay: int | None = None
    reason: str = ""
    witness: tuple[str, ...] = ()


class UpdateTicket:
    """An update under way. The daemon keeps a copy: its memory may be used again at once."""

    def __init__(self, update: str, timeout_s: float) -> None:
        self.update = update
        self._timeout_s = timeout_s
        self._ended = threading.Event()
        self._end: TicketEnd | None = None

    @property
    def done(self) -> bool:
        """Whether the update has ended."""
        return self._ended.is_set()

    def finish(self, end: TicketEnd) -> None:
        """End it; the first end counts."""
        if self._end is None:
            self._end = end
            self._ended.set()

    def wait(self, timeout_s: float | None = None) -> TicketEnd:
        """Wait for the end.

        Raises
        ------
        CommunicationFailed
            When there is none in time; the update may still be committed.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        if not self._ended.wait(limit):
            raise CommunicationFailed(
                f"update {self.update} is neither committed nor dropped after {limit:g} s"
            )
        assert self._end is not None
        return self._end


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the server had it.

    Attributes
    ----------
    version
        What updates computed from it are pushed with.
    weights
        float32, one row.
    """

    version: int
    weights: Vector


class _Answer:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.incoming: Incoming | None = None
        self.reason = ""


class FabricClient(Closing):
    """A worker's connection to the daemon of its host; any thread may call it.

    Parameters
    ----------
    address
        HOST:PORT of the daemon.
    worker
        Its name; the ids of its updates begin with it. One is made unless given. A worker that starts again
        may have the same name: its updates are new ones.
    timeout_s
        How long a call waits before it raises.

    Raises
    ------
    CommunicationFailed
        When no daemon answers, or it refuses.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        worker: str | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout_s: float = 600.0,
        silence_s: float = 20.0,
        within_s: float = 30.0,
    ) -> None:
        name = worker or f"{socket.gethostname()}:{os.getpid()}"
        if not name or len(name) > 150 or not name.isprintable():
            raise InvalidOptions(
                f"worker is {worker!r}; a printable name of at most 150 characters is needed"
            )
        self.worker, self._timeout_s = name, timeout_s
        self._start = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._numbers = 0
        self._updates = 0
        self._tickets: dict[str, UpdateTicket] = {}
        self._answers: dict[int, _Answer] = {}
        self._rounds: dict[str, int] = {}
        self._lost: str | None = None
        self._link = connect(
            address, token=token, silence_s=silence_s, within_s=within_s, ssl_context=ssl_context
        )
        self._link.start(self._hear, self._end, self._receive)

    def push(
        self,
        update: NDArray[np.float32] | SparseUpdate,
        version: int,
        *,
        weight: float = 1.0,
        kind: UpdateKind = "gradient",
    ) -> UpdateTicket:
        """Hand an update to the fabric; returns at once.

        Parameters
        ----------
        update
            What is added to the model, already multiplied by the learning rate and its sign. A sparse one is
            sent, and added on the way, as it is.
        version
            Version of the model that it was computed from.
        weight
            Its factor in a sum, or its share in a weighted mean.

        Raises
        ------
        InvalidUse
            When it is no finite update.
        CommunicationFailed
            When the daemon is gone.
        """
        held, data = self._held(update, version, weight, kind)
        ticket = UpdateTicket(held.id, self._timeout_s)
        with self._lock:
            self._check()
            self._tickets[held.id] = ticket
            self._numbers += 1
            number = self._numbers
        self._send(PushCall(number=number, update=held), data)
        return ticket

    def get(self, *, at_least: int = 0, training: bool = True, timeout_s: float | None = None) -> ServedModel:
        """Return a model of at least this version.

        Parameters
        ----------
        training
            Whether an update is computed from it. Say no where a model is only read: with ``late="pace"``
            the others would wait for that update.

        Raises
        ------
        CommunicationFailed
            When there is none in time, or the daemon is gone.
        """
        answer, number = self._ask()
        self._link.send(ModelCall(number=number, at_least=at_least, training=training))
        incoming = self._wait(answer, number, "a model", timeout_s)
        return ServedModel(incoming.intro.version, np.frombuffer(incoming.data, dtype=np.float32))

    def all_reduce(
        self,
        update: NDArray[np.float32],
        *,
        members: int,
        weight: float = 1.0,
        name: str = "mean",
        timeout_s: float | None = None,
    ) -> Vector:
        """Return the weighted mean of all members' updates: the same bytes for all.

        Parameters
        ----------
        members
            How many take part. Every member calls the same number of times with the same `name`.

        Raises
        ------
        CommunicationFailed
            When a member is gone or does not come in time.
        InvalidUse
            When the update is not finite, or sparse: the mean of all members rarely is.
        """
        if isinstance(update, SparseUpdate):
            raise InvalidUse("a sparse update in an all-reduce: give update.dense()")
        held, data = self._held(update, 0, weight, "pseudo-gradient")
        with self._lock:
            self._rounds[name] = self._rounds.get(name, 0) + 1
            round_ = f"{name}:{self._rounds[name]}"
        answer, number = self._ask()
        ticket = UpdateTicket(held.id, self._timeout_s)

        def finish(end: TicketEnd) -> None:
            answer.reason = end.reason
            answer.event.set()

        ticket.finish = finish  # type: ignore[method-assign]
        with self._lock:
            self._tickets[held.id] = ticket
        try:
            self._send(PushCall(number=number, update=held, round=round_, members=members), data)
            incoming = self._wait(answer, number, f"the mean of round {round_}", timeout_s)
        finally:
            with self._lock:
                self._tickets.pop(held.id, None)
        return np.frombuffer(incoming.data, dtype=np.float32)

    def close(self) -> None:
        """Leave; updates that were handed over are still committed. Idempotent."""
        self._link.finish(within_s=30.0)
        self._end(self._link, "the client was closed")

    def _held(
        self, update: NDArray[np.float32] | SparseUpdate, version: int, weight: float, kind: UpdateKind
    ) -> tuple[HeldUpdate, bytes | bytearray]:
        sparse = isinstance(update, SparseUpdate)
        row = np.ascontiguousarray(
            update.values if isinstance(update, SparseUpdate) else update, dtype=np.float32
        ).reshape(-1)
        norm = float(np.linalg.norm(row.astype(np.float64)))
        if not row.size or not np.isfinite(norm):
            raise InvalidUse(f"an update of {row.size} numbers and norm {norm}; finite numbers are needed")
        if not (weight > 0 and np.isfinite(weight)) or version < 0:
            raise InvalidUse(f"weight {weight!r} and version {version!r}: positive and at least 0 are needed")
        with self._lock:
            self._updates += 1
            name = update_id(self.worker, self._start, self._updates)
        data = update.to_bytes() if isinstance(update, SparseUpdate) else row.tobytes()
        held = HeldUpdate(
            id=name,
            version=version,
            numbers=update.numbers if isinstance(update, SparseUpdate) else row.size,
            size_bytes=len(data),
            norm=norm,
            weight=weight,
            kind=kind,
            sparse=sparse,
        )
        return held, data

    def _send(self, call: PushCall, data: bytes | bytearray) -> None:
        self._link.send(call)
        intro = TransferIntro(
            transfer=call.number, key=f"u/{call.update.id}", size_bytes=len(data), version=call.update.version
        )
        self._link.send_tensor(intro, memoryview(data))

    def _check(self) -> None:
        if self._lost is not None:
            raise CommunicationFailed(f"the daemon is gone: {self._lost}")

    def _ask(self) -> tuple[_Answer, int]:
        with self._lock:
            self._check()
            self._numbers += 1
            answer = self._answers[self._numbers] = _Answer()
            return answer, self._numbers

    def _wait(self, answer: _Answer, number: int, what: str, timeout_s: float | None) -> Incoming:
        limit = self._timeout_s if timeout_s is None else timeout_s
        try:
            if not answer.event.wait(limit):
                raise CommunicationFailed(f"{what} did not come within {limit:g} s")
        finally:
            with self._lock:
                self._answers.pop(number, None)
        if answer.incoming is None:
            raise CommunicationFailed(f"{what} cannot be had: {answer.reason}")
        return answer.incoming

    # On the reading thread.

    def _hear(self, _link: FabricLink, message: Message) -> None:
        if not isinstance(message, TicketOrder):
            return
        with self._lock:
            ticket = self._tickets.pop(message.update, None)
        if ticket is not None:
            ticket.finish(
                TicketEnd(
                    outcome=message.outcome,
                    version=message.version,
                    delay=message.delay,
                    reason=message.reason,
                    witness=message.witness,
                )
            )

    def _receive(self, _link: FabricLink, incoming: Incoming) -> None:
        with self._lock:
            answer = self._answers.get(incoming.intro.transfer)
        if answer is not None:
            answer.incoming = incoming
            answer.event.set()

    def _end(self, _link: FabricLink, reason: str) -> None:
        with self._lock:
            self._lost = self._lost or reason
            tickets, answers = list(self._tickets.values()), list(self._answers.values())
            self._tickets.clear()
        for ticket in tickets:
            ticket.finish(TicketEnd(outcome="failed", reason=reason))
        for answer in answers:
            answer.reason = reason
            answer.event.set()
