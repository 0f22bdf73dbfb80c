"""Passes bodies to reader processes; equal bodies of a tenant are read once."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

from pace.api.fairness.fair_queue import FairQueue
from pace.api.questions.kind import Question, ReadLimits, ReceivedProfile
from pace.api.questions.reading import read_file
from pace.api.spool import ArrivedBody
from pace.api.workers.imports.read_import import ReceivedImport
from pace.api.workers.pool import WorkerPool

AnyReceived = ReceivedProfile | ReceivedImport | Question
Received = TypeVar("Received", ReceivedProfile, ReceivedImport, Question)
_LARGE_BYTES = 2**20
_ENTRY_BYTES = 1000
# Few bytes of gzip may hold much work, and who sends little may take little of a processor's time.
_LEAST_WORK_S, _WORK_S_PER_BYTE = 10.0, 10 / 2**20


class BodyReader:
    """Reads bodies.

    Parameters
    ----------
    max_waiting
        Largest number of waiting bodies, of one tenant half as many; more are refused with 429.
    timeout_s
        For one body. Of a processor's time, small ones have less.
    memory_bytes
        Size of the results that are kept, so that a repeated body is not read again.
    weight, observe
        The arguments of ``FairQueue``.
    """

    def __init__(
        self,
        readers: WorkerPool,
        limits: ReadLimits,
        *,
        max_waiting: int,
        timeout_s: float,
        memory_bytes: int,
        weight: Callable[[str], float] = lambda _: 1.0,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._readers = readers
        self._turns = FairQueue("bodies", readers.size, max_waiting, weight, observe)
        self._limits = limits
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._reading: dict[bytes, asyncio.Task[AnyReceived]] = {}
        self._read: OrderedDict[bytes, tuple[int, AnyReceived]] = OrderedDict()
        self._held_bytes = 0

    async def read(
        self,
        function: Callable[..., Received],
        body: ArrivedBody,
        gzipped: bool,
        tenant: str,
        *arguments: str,
    ) -> Received:
        """Return the result of a function of a body, such as ``read_question``.

        The function is called with the bytes, whether they are compressed, the limits, and the `arguments`.

        The body's file is deleted as soon as it is not needed.

        Nothing is shared between tenants: not even the time of an answer tells one what another sent.
        """
        # The digest holds the function's name, hence the casts.
        named = "\n".join([f"{function.__name__} {gzipped} {tenant}", *arguments, ""]).encode()
        digest = hashlib.sha256(named + body.sha256).digest()
        if digest in self._read:
            body.delete()
            self._read.move_to_end(digest)
            return cast("Received", self._read[digest][1])
        reading = self._reading.get(digest)
        if reading is None:
            reading = asyncio.create_task(self._read_in_turn(function, body, gzipped, tenant, *arguments))
            self._reading[digest] = reading
            reading.add_done_callback(lambda done: self._finish(digest, body, done))
        else:
            body.delete()
        # Shielded: a client that disconnects must not cancel the answer of others.
        return cast("Received", await asyncio.shield(reading))

    async def _read_in_turn(
        self,
        function: Callable[..., AnyReceived],
        body: ArrivedBody,
        gzipped: bool,
        tenant: str,
        *arguments: str,
    ) -> AnyReceived:
        call = (function,) if isinstance(body.content, bytes) else (read_file, function)
        # Compressed ones may be large inside.
        large = gzipped or body.size_bytes > _LARGE_BYTES
        async with self._turns.turn(tenant, large=large):
            received: AnyReceived = await self._readers.run(
                *call,
                body.content,
                gzipped,
                self._limits,
                *arguments,
                timeout_s=self._timeout_s,
                gives_way=large,
                work_s=_LEAST_WORK_S + _WORK_S_PER_BYTE * body.size_bytes,
                attempts=3,
            )
            return received

    def _finish(self, digest: bytes, body: ArrivedBody, done: asyncio.Task[AnyReceived]) -> None:
        del self._reading[digest]
        body.delete()
        if done.cancelled() or done.exception() is not None:
            return
        received = done.result()
        held = received
        size = _held_bytes(received)
        if isinstance(held, Question):
            held = replace(held, is_repeated=True)
        self._read[digest] = (size, held)
        self._held_bytes += size
        while self._held_bytes > self._memory_bytes:
            _, (dropped, _) = self._read.popitem(last=False)
            self._held_bytes -= dropped


def _held_bytes(received: AnyReceived) -> int:
    match received:
        case ReceivedImport():
            return _ENTRY_BYTES + received.profile.stored_bytes
        case Question():
            # A question's grid may be longer than its profile.
            brought = 0 if received.input is None else received.input.stored_bytes
            return _ENTRY_BYTES + len(received.options) + brought
    return _ENTRY_BYTES + len(received.document)
