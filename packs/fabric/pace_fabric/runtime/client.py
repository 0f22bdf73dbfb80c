"""What a worker calls: push an update and get a ticket, get a model, take part in a weighted mean."""

import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.closing import Closing
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.client_answers import DaemonAnswer, ServedModel, TicketEnd, UpdateTicket
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.connection import FabricLink, Incoming, connect
from pace_fabric.runtime.formats.error_feedback import NarrowUpdate
from pace_fabric.runtime.formats.update_forms import dense_vector
from pace_fabric.runtime.messages import (
    GroupAnswer,
    Message,
    ModelCall,
    PushCall,
    RoundCall,
    StateCall,
    StateOrder,
    TicketOrder,
    TransferIntro,
)
from pace_fabric.runtime.sparse_update import SparseUpdate
from pace_fabric.runtime.update_records import HeldUpdate, UpdateForm, update_id

UpdateKind = Literal["gradient", "pseudo-gradient", "delta", "rollouts"]


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
        self._answers: dict[int, DaemonAnswer] = {}
        self._rounds: dict[str, int] = {}
        self._states: dict[str, Callable[[StateOrder], None]] = {}
        self._lost: str | None = None
        self._link = connect(
            address, token=token, silence_s=silence_s, within_s=within_s, ssl_context=ssl_context
        )
        self._link.start(self._hear, self._end, self._receive)

    def push(
        self,
        update: NDArray[np.float32] | SparseUpdate | NarrowUpdate,
        version: int,
        *,
        weight: float = 1.0,
        kind: UpdateKind = "gradient",
    ) -> UpdateTicket:
        """Hand an update to the fabric; returns at once.

        Parameters
        ----------
        update
            What is added to the model, already multiplied by the learning rate and its sign. Sparse and
            narrow ones are sent as they are; `ErrorFeedback` makes them.
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
        held, data = self.hold(update, version, weight, kind)
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
        answer, number = self.ask()
        self._link.send(ModelCall(number=number, at_least=at_least, training=training))
        incoming = self.wait_for(answer, number, "a model", timeout_s)
        return ServedModel(incoming.intro.version, dense_vector(incoming.data, incoming.intro.form))

    def all_reduce(
        self,
        update: NDArray[np.float32] | NarrowUpdate,
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
        update
            If all are in one format of 16 bits, so is the mean; if all are `int8`, it is bfloat16.

        Raises
        ------
        CommunicationFailed
            When a member is gone or does not come in time.
        InvalidUse
            When the update is not finite, or sparse: the mean of all members rarely is.
        """
        if isinstance(update, SparseUpdate):
            raise InvalidUse("an all-reduce takes no sparse update: give update.dense()")
        held, data = self.hold(update, 0, weight, "pseudo-gradient")
        with self._lock:
            self._rounds[name] = self._rounds.get(name, 0) + 1
            round_ = f"{name}:{self._rounds[name]}"
        answer, number = self.ask()
        ticket = UpdateTicket(held.id, self._timeout_s)

        def finish(end: TicketEnd) -> None:
            answer.reason = end.reason
            answer.event.set()

        ticket.finish = finish  # type: ignore[method-assign]
        with self._lock:
            self._tickets[held.id] = ticket
        try:
            self._send(PushCall(number=number, update=held, round=round_, members=members), data)
            incoming = self.wait_for(answer, number, f"the mean of round {round_}", timeout_s)
        finally:
            with self._lock:
                self._tickets.pop(held.id, None)
        return dense_vector(incoming.data, incoming.intro.form)

    def close(self) -> None:
        """Leave; updates that were handed over are still committed. Idempotent."""
        self._link.finish(within_s=30.0)
        self._end(self._link, "the client was closed")

    def hold(
        self,
        update: NDArray[np.float32] | SparseUpdate | NarrowUpdate,
        version: int,
        weight: float,
        kind: UpdateKind,
    ) -> tuple[HeldUpdate, bytes | bytearray]:
        """Return an update as the daemon keeps it, and its bytes; raises InvalidUse when it is none."""
        form: UpdateForm = "float32"
        data: bytes | bytearray
        match update:
            case SparseUpdate():
                row, numbers, form, data = update.values, update.numbers, "sparse", update.to_bytes()
            case NarrowUpdate():
                row, numbers, form, data = update.dense(), update.numbers, update.form, update.data
            case _:
                row = np.ascontiguousarray(update, dtype=np.float32).reshape(-1)
                numbers, data = row.size, row.tobytes()
        norm = float(np.linalg.norm(row.astype(np.float64)))
        if not row.size or not np.isfinite(norm):
            raise InvalidUse(f"an update of {row.size} numbers and norm {norm}; finite numbers are needed")
        if not (weight > 0 and np.isfinite(weight)) or version < 0:
            raise InvalidUse(
                f"weight is {weight!r} and version is {version!r}: a positive weight and a version of at "
                "least 0 are needed"
            )
        with self._lock:
            self._updates += 1
            name = update_id(self.worker, self._start, self._updates)
        held = HeldUpdate(
            id=name,
            version=version,
            numbers=numbers,
            size_bytes=len(data),
            norm=norm,
            weight=weight,
            kind=kind,
            form=form,
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

    # What groups need besides (pace_fabric.runtime.group_member).

    @property
    def incarnation(self) -> str:
        """The worker's name, and what tells this start of it from all others."""
        return f"{self.worker}-{self._start}"

    def tell(self, message: Message, data: bytes | bytearray | None = None, key: str = "") -> None:
        """Send a message; with data, also a transfer of the message's number."""
        self._link.send(message)
        if data is not None:
            assert isinstance(message, RoundCall | StateCall)
            intro = TransferIntro(transfer=message.number, key=key, size_bytes=len(data))
            self._link.send_tensor(intro, memoryview(data))

    def on_state_order(self, group: str, give: Callable[[StateOrder], None] | None) -> None:
        """Have the reading thread call this when a group's newcomers need a state; None for nothing."""
        with self._lock:
            self._states.pop(group, None)
            if give is not None:
                self._states[group] = give

    def ask(self) -> tuple[DaemonAnswer, int]:
        """Return what the next call will wait for, and its number."""
        with self._lock:
            self._check()
            self._numbers += 1
            answer = self._answers[self._numbers] = DaemonAnswer()
            return answer, self._numbers

    def next_number(self) -> int:
        """Return a number for a call without an answer."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def wait_for(self, answer: DaemonAnswer, number: int, what: str, timeout_s: float | None) -> Incoming:
        """Wait for a tensor.

        Raises
        ------
        CommunicationFailed
            When it does not come in time, or cannot.
        """
        self.wait(answer, number, what, timeout_s)
        if answer.incoming is None:
            raise CommunicationFailed(f"{what} is not available: {answer.reason}")
        return answer.incoming

    def wait(self, answer: DaemonAnswer, number: int, what: str, timeout_s: float | None) -> None:
        """Wait for any answer; raises CommunicationFailed when there is none in time."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        try:
            if not answer.event.wait(limit):
                raise CommunicationFailed(f"{what} did not arrive within {limit:g} s")
        finally:
            with self._lock:
                self._answers.pop(number, None)

    # On the reading thread.

    def _hear(self, _link: FabricLink, message: Message) -> None:
        match message:
            case GroupAnswer():
                self._answer(message)
            case StateOrder():
                with self._lock:
                    give = self._states.get(message.group)
                if give is not None:
                    give(message)
            case TicketOrder():
                self._finish(message)

    def _answer(self, message: GroupAnswer) -> None:
        with self._lock:
            answer = self._answers.get(message.number)
        if answer is not None:
            answer.group, answer.reason = message, message.reason
            answer.event.set()

    def _finish(self, message: TicketOrder) -> None:
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
