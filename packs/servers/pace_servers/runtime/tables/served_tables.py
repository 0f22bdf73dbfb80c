"""The tables of one job at one server: who may look up when, and when updates are applied."""

import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from pace.errors import InvalidOptions
from pace.solver.arrays import IntArray
from pace.wire.frames import Frame, WireFault
from pace_servers.runtime.tables.initial_rows import RowArray, is_ascending
from pace_servers.runtime.tables.row_table import RowTable, TableSpec
from pace_servers.runtime.tables.table_messages import TableWord, read_look_up, read_push, read_save

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_TABLES = 10_000


class TableAnswer(NamedTuple):
    """A message to a worker."""

    rank: int
    word: TableWord
    table: int
    request: int
    message: bytes | memoryview


class WorkerLeft(Exception):
    """Others wait for the updates of a worker that has left."""


Update = tuple[IntArray, RowArray]
"""Keys and their gradients."""


def added(parts: Sequence[Update]) -> Update:
    """Return distinct keys with the sums of their gradients, added in the order of the parts.

    A part may have a key several times: once for each forward pass, whose keys are sorted.
    """
    if len(parts) == 1 and is_ascending(parts[0][0]):
        return parts[0]
    keys, places = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    # What every number is added to without a change, -0.0 included.
    total = np.full((len(keys), parts[0][1].shape[1]), -0.0, dtype=np.float32)
    begin = 0
    for theirs, gradients in parts:
        mine = places[begin : begin + len(theirs)]
        begin += len(theirs)
        passes = np.flatnonzero(theirs[1:] <= theirs[:-1]) + 1
        for first, last in pairwise([0, *passes.tolist(), len(theirs)]):
            total[mine[first:last]] += gradients[first:last]
    return keys, total


class _Waiting(NamedTuple):
    clock: int
    rank: int
    answer: Callable[[], TableAnswer]


class _ServedTable:
    """One table, and how far each worker is.

    With a staleness of 0, an update is applied when all workers have pushed theirs, added in the order of
    ranks. Otherwise each is applied when it arrives.
    """

    def __init__(self, number: int, spec: TableSpec, table: RowTable, size: int) -> None:
        self.number, self.spec, self.table = number, spec, table
        self._size = size
        self._pushed = [0] * size
        self._left: set[int] = set()
        self._parts: dict[int, Update | None] = {}
        self._waiting: list[_Waiting] = []

    @property
    def _reached(self) -> float:
        """How many updates of every worker are in; infinite where nobody waits for others."""
        staleness = self.spec.staleness
        if staleness is None:
            return math.inf
        here = [clock for rank, clock in enumerate(self._pushed) if staleness == 0 or rank not in self._left]
        return min(here, default=math.inf)

    def look_up(self, rank: int, request: int, message: bytearray) -> Iterable[TableAnswer]:
        """Return rows, or what is due later."""
        clock, keys = read_look_up(message)
        self._check(keys)

        def answer() -> TableAnswer:
            rows = self.table.look_up(keys, rank)
            return TableAnswer(
                rank, TableWord.ROWS, self.number, request, rows.reshape(-1).view(np.uint8).data
            )

        return self._when(clock, clock - (self.spec.staleness or 0), rank, answer)

    def save(self, rank: int, request: int, message: bytearray, folder: Path | None) -> Iterable[TableAnswer]:
        """Write a checkpoint at a clock of all workers; at once if they do not wait for one another."""
        clock, save_id, name = read_save(message)

        def answer() -> TableAnswer:
            try:
                write_checkpoint(self.table, folder, name, save_id)
            except (InvalidOptions, OSError) as error:
                return TableAnswer(rank, TableWord.REFUSE, self.number, request, str(error).encode())
            return TableAnswer(rank, TableWord.DONE, self.number, request, b"")

        return self._when(clock, clock, rank, answer)

    def _when(
        self, clock: int, needed: int, rank: int, answer: Callable[[], TableAnswer]
    ) -> Iterable[TableAnswer]:
        if clock > self._pushed[rank] + 1:
            raise WireFault(f"rank {rank} asks for clock {clock} after {self._pushed[rank]} updates")
        if self._reached >= needed:
            return [answer()]
        self._waiting.append(_Waiting(needed, rank, answer))
        self._refuse_to_wait_for_nobody()
        return ()

    def _refuse_to_wait_for_nobody(self) -> None:
        if self.spec.staleness != 0:
            return
        for rank in self._left:
            due = self._parts and rank not in self._parts
            if due or any(each.clock > self._pushed[rank] for each in self._waiting):
                raise WorkerLeft(f"rank {rank} has left the training")

    def _due(self) -> Iterator[TableAnswer]:
        reached = self._reached
        due = [each for each in self._waiting if each.clock <= reached]
        self._waiting = [each for each in self._waiting if each.clock > reached]
        return (each.answer() for each in due)

    def push(self, rank: int, message: bytearray) -> Iterable[TableAnswer]:
        """Take a worker's update, and return the rows that it allows."""
        clock, part = read_push(message, self.spec.width)
        if part is not None:
            self._check(part[0])
        if clock != self._pushed[rank]:
            raise WireFault(f"update {clock} where {self._pushed[rank]} is due")
        self._pushed[rank] += 1
        if self.spec.staleness != 0:
            if part is not None:
                self._apply({rank: part})
            return self._due()
        self._parts[rank] = part
        if len(self._parts) < self._size:
            self._refuse_to_wait_for_nobody()
            return ()
        parts = {rank: part for rank, part in sorted(self._parts.items()) if part is not None}
        self._parts = {}
        if len(parts) == self._size:  # otherwise one is not finite
            self._apply(parts)
        return self._due()

    def _apply(self, parts: dict[int, Update]) -> None:
        """Apply the updates of these ranks as one."""
        keys, gradients = added(list(parts.values()))
        if self.spec.average and self._size > 1:
            gradients *= np.float32(1 / self._size)
        self.table.update(keys, gradients, parts)

    def _check(self, keys: IntArray) -> None:
        if len(keys) and keys.max() >= self.table.num_keys:
            raise WireFault(f"key {keys.max()} of a table with {self.table.num_keys} keys here")

    def leave(self, rank: int) -> Iterable[TableAnswer]:
        """Wait for a worker no longer."""
        self._left.add(rank)
        self._waiting = [each for each in self._waiting if each.rank != rank]
        self._refuse_to_wait_for_nobody()
        return self._due()


class ServedTables:
    """All tables of a job here; callers hold a lock.

    Parameters
    ----------
    size
        How many workers the job has.
    folder
        Where checkpoints are; None if there are none.
    """

    def __init__(self, size: int, *, most_bytes: int, folder: Path | None) -> None:
        self._size, self._most_bytes, self._folder = size, most_bytes, folder
        self._tables: dict[int, _ServedTable] = {}

    def take(self, rank: int, frame: Frame, message: bytearray) -> Iterable[TableAnswer]:
        """Carry out what a worker says, and return the answers that are due.

        Raises
        ------
        WireFault
            When it breaks the protocol.
        WorkerLeft
            When it waits for a worker that has left.
        """
        if frame.segment == TableWord.OPEN:
            return [self._open(rank, frame, message)]
        served = self._tables.get(frame.layout)
        if served is None:
            raise WireFault(f"table {frame.layout} is not open")
        if frame.segment == TableWord.LOOK_UP:
            return served.look_up(rank, frame.round, message)
        if frame.segment == TableWord.PUSH:
            return served.push(rank, message)
        if frame.segment == TableWord.SAVE:
            return served.save(rank, frame.round, message, self._folder)
        raise WireFault(f"word {frame.segment} from a worker")

    def _open(self, rank: int, frame: Frame, message: bytearray) -> TableAnswer:
        try:
            place, _, document = message.partition(b"\n")
            server, num_servers = (int(number) for number in place.split())
            spec = TableSpec.read(document)
            known = self._tables.get(frame.layout)
            if known is not None and known.spec.document != spec.document:
                raise InvalidOptions(
                    f"table {frame.layout} differs between ranks: {known.spec.document.decode()} and, on rank"
                    f" {rank}, {spec.document.decode()}"
                )
            if known is None:
                if len(self._tables) >= _MOST_TABLES:
                    raise InvalidOptions(f"a job may have at most {_MOST_TABLES} tables")
                taken = sum(each.table.size_bytes for each in self._tables.values())
                table = RowTable(spec, server, num_servers, most_bytes=self._most_bytes - taken)
                if spec.restore is not None:
                    read_checkpoint(table, self._folder, spec.restore)
                self._tables[frame.layout] = _ServedTable(frame.layout, spec, table, self._size)
        except (InvalidOptions, OSError, ValueError, MemoryError) as error:
            return TableAnswer(rank, TableWord.REFUSE, frame.layout, frame.round, str(error).encode())
        restored_id = self._tables[frame.layout].table.restored_id
        return TableAnswer(rank, TableWord.DONE, frame.layout, frame.round, restored_id.encode())

    def leave(self, rank: int) -> list[TableAnswer]:
        """Wait for a worker no longer; return what is due to others.

        Raises
        ------
        WorkerLeft
            When others wait for what it has not pushed.
        """
        return [answer for served in self._tables.values() for answer in served.leave(rank)]


def _checkpoint_file(table: RowTable, folder: Path | None, name: str) -> Path:
    if folder is None:
        raise InvalidOptions("this server keeps no checkpoints: start it with --checkpoints FOLDER")
    for part in (name, table.spec.name):
        if not _NAME.fullmatch(part):
            raise InvalidOptions(f"{part!r} names no file: use letters, digits, '.', '_' and '-'")
    return folder / name / f"{table.spec.name}.{table.place}.npz"


def write_checkpoint(table: RowTable, folder: Path | None, name: str, save_id: str) -> None:
    """Write a table's rows and state to its file, whole or not at all.

    Parameters
    ----------
    save_id
        What all files of this checkpoint have in common.

    Raises
    ------
    InvalidOptions
        When there is no folder, or a name is none of a file.
    """
    file = _checkpoint_file(table, folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    begun = file.with_suffix(".part")
    with begun.open("wb") as out:
        np.savez(out, **table.contents(save_id))
        out.flush()
        os.fsync(out.fileno())
    begun.replace(file)


def read_checkpoint(table: RowTable, folder: Path | None, name: str) -> None:
    """Fill a table from its file.

    Raises
    ------
    InvalidOptions
        When there is none, or it is damaged or of another table.
    """
    file = _checkpoint_file(table, folder, name)
    if not file.is_file():
        raise InvalidOptions(
            f'there is no checkpoint "{name}" of table "{table.spec.name}" for server {table.place}'
        )
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as contents:
            table.restore(contents)
    except (BadZipFile, EOFError, KeyError, ValueError, zlib.error) as error:
        if isinstance(error, InvalidOptions):
            raise
        raise InvalidOptions(f"the checkpoint {file} is damaged: {error}") from error
