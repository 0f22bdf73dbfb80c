"""A worker's link to one server of tables: what it has asked for and not got back."""

import itertools
from concurrent.futures import Future
from typing import Any

from pace.errors import CommunicationFailed, InvalidUse
from pace.wire.frames import Frame, FrameKind, WireFault
from pace_servers.runtime.link import ServerLink
from pace_servers.runtime.tables.table_messages import TableReader, TableWord, table_parcel


class TableLink(ServerLink):
    """A ``ServerLink`` that carries messages about tables, in the order in which they are put in."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._asked: dict[int, Future[bytearray]] = {}
        self._numbers = itertools.count()
        self._reader = TableReader()
        super().__init__(*arguments, **named)

    def tell(self, word: TableWord, table: int, message: bytes | memoryview) -> None:
        """Send what has no answer; returns at once.

        Raises
        ------
        CommunicationFailed
            If the server has said goodbye.
        """
        if self.left:
            raise CommunicationFailed(f"{self.address.name} has left the training")
        self._outbox.put((0,), table_parcel(word, table, 0, message))

    def ask(self, word: TableWord, table: int, message: bytes) -> "Future[bytearray]":
        """Send what has an answer; returns at once."""
        answer: Future[bytearray] = Future()
        with self._lock:
            over = self._over
            number = next(self._numbers) % (1 << 32)
            if not over:
                self._asked[number] = answer
        if over:
            answer.set_exception(CommunicationFailed(f"{self.address.name} has left the training"))
        else:
            self._outbox.put((0,), table_parcel(word, table, number, message))
        return answer

    @property
    def carried_bytes(self) -> tuple[int, int]:
        """What the kernel has sent and seen acknowledged, and received."""
        return self._stream.carried_bytes

    def _take(self, frame: Frame) -> bool:
        if frame.kind is not FrameKind.TABLE:
            going_on = super()._take(frame)
            if not going_on:
                self._end_asked(f"{self.address.name} has left the training")
            return going_on
        message = self._reader.read(self._stream, frame)
        if message is None:
            return True
        with self._lock:
            answer = self._asked.pop(frame.round, None)
        if answer is None:
            raise WireFault(f"an answer to request {frame.round}, which is not under way")
        if frame.segment == TableWord.REFUSE:
            answer.set_exception(InvalidUse(f"{self.address.name}: {message.decode(errors='replace')}"))
        elif frame.segment in (TableWord.ROWS, TableWord.DONE):
            answer.set_result(message)
        else:
            raise WireFault(f"word {frame.segment} from a server")
        return True

    def abort(self, reason: str, *, lost: bool = False) -> None:
        """End the link, telling the server why; whoever waits for an answer gets an error. Idempotent."""
        super().abort(reason, lost=lost)
        self._end_asked(reason)

    def _end_asked(self, reason: str) -> None:
        with self._lock:
            asked = list(self._asked.values())
            self._asked.clear()
        for answer in asked:
            answer.set_exception(CommunicationFailed(reason))
