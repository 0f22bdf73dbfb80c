"""A job as arrays: how they grow, operation by operation, and what their numbers stand for."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from pace.documents.order.job_program import (
    EnqueuedMeeting,
    EnqueuedTransfer,
    EnqueuedWait,
    JobProgram,
    Synchronization,
)
from pace.documents.order.order_report import StreamRule
from pace.order.rank_classes import RankClasses
from pace.solver.collective_order.operations import NO_WAIT, Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedOperation:
    """An operation of a class of ranks, for messages.

    Attributes
    ----------
    place
        Number of the operation in its thread's list, from 0.
    document
        None for what a document does not name: the end of a batch, a launch that waits for room.
    number
        Which of its seat it is, from 0; None if it meets nobody.
    """

    rank_class: int
    thread: str
    place: int
    document: EnqueuedMeeting | EnqueuedWait | Synchronization | None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredJob:
    """The arrays, and what their numbers stand for.

    Attributes
    ----------
    seats
        Of each seat: its group, its class, and for transfers the ranks that send and receive.
    """

    operations: Operations
    issued: tuple[IssuedOperation, ...]
    seats: tuple["Seat", ...]
    classes: RankClasses


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A class's place in a communicator; `transfer` has the ranks that send and receive, for transfers."""

    group: str
    rank_class: int
    transfer: tuple[int, int] | None = None


@dataclass(slots=True)
class _Columns:
    """The arrays while they grow."""

    thread: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    seat: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    dtype: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    is_batched: list[bool] = field(default_factory=list)
    device: list[int] = field(default_factory=list)


class GrowingJob:
    """The arrays of a job while its ranks are lowered one after another."""

    def __init__(
        self, job: JobProgram, classes: RankClasses, streams: StreamRule, launch_slots: int | None
    ) -> None:
        self.job = job
        self.classes = classes
        self.in_launch_order = streams == "launch-order"
        self.launch_slots = launch_slots
        self.columns = _Columns()
        self.issued: list[IssuedOperation] = []
        self.edges: list[tuple[int, int]] = []
        self.seats: list[Seat] = []
        self.seat_is_ordered: list[bool] = []
        self.seat_communicator: list[int] = []
        self.num_communicators = 0
        self.seat_numbers: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._labels: dict[Hashable, int] = {}
        called = {m.group for p in classes.programs for t in p.threads for m in t.meetings()}
        for group in job.groups:
            if group.name not in called:
                continue
            seen = set()
            for ranks in group.communicators:
                members = frozenset(classes.class_of[rank] for rank in ranks)
                if members in seen:
                    continue
                seen.add(members)
                for rank_class in sorted(members):
                    seat = Seat(group=group.name, rank_class=rank_class)
                    self._add_seat((group.name, rank_class), seat, ordered=True)
                self.num_communicators += 1

    def _add_seat(self, key: Hashable, seat: Seat, *, ordered: bool) -> None:
        self.seat_numbers[key] = len(self.seats)
        self.seats.append(seat)
        self.seat_is_ordered.append(ordered)
        self.seat_communicator.append(self.num_communicators)

    def transfer_seat(self, rank: int, transfer: EnqueuedTransfer, *, is_batched: bool) -> int:
        """Return the seat of a send or receive: each pair of ranks meets for each direction and tag."""
        ways = (rank, transfer.peer) if transfer.op == "send" else (transfer.peer, rank)
        key = (transfer.group, ways, transfer.tag, is_batched and self.has_pairs(transfer.group))
        if (*key, rank) not in self.seat_numbers:
            ordered = self.job.group_of[transfer.group].backend == "nccl"
            for end in ways:
                seat = Seat(group=transfer.group, rank_class=self.classes.class_of[end], transfer=ways)
                self._add_seat((*key, end), seat, ordered=ordered)
            self.num_communicators += 1
        return self.seat_numbers[(*key, rank)]

    def has_pairs(self, group: str) -> bool:
        """Return whether transfers of a group that are not in a batch have communicators of their own."""
        document = self.job.group_of[group]
        return document.backend == "nccl" and document.transfers == "pair"

    def number(self, *key: Hashable) -> int:
        """Return the number of a queue or a thread: equal keys have one."""
        kind = key[0]
        place = self._numbers.setdefault((kind, "count"), 0)
        if key not in self._numbers:
            self._numbers[key] = place
            self._numbers[kind, "count"] = place + 1
        return self._numbers[key]

    def label(self, value: Hashable) -> int:
        """Return the number of a kind or a dtype."""
        return self._labels.setdefault(value, len(self._labels))

    def add(
        self,
        issued: IssuedOperation,
        thread: int,
        *,
        stream: int = -1,
        queue: int = -1,
        seat: int = -1,
        waits: int = NO_WAIT,
        kind: int = -1,
        dtype: int = -1,
        size_bytes: int = -1,
        is_batched: bool = False,
        after: tuple[int, ...] = (),
    ) -> int:
        """Append an operation, and return its number."""
        number = len(self.issued)
        self.issued.append(issued)
        columns = self.columns
        columns.thread.append(thread)
        columns.stream.append(stream)
        columns.queue.append(queue)
        columns.seat.append(seat)
        columns.waits.append(waits)
        columns.kind.append(kind)
        columns.dtype.append(dtype)
        columns.size_bytes.append(size_bytes)
        columns.is_batched.append(is_batched)
        on_device = stream >= 0 or queue >= 0
        columns.device.append(issued.rank_class if on_device and self.in_launch_order else -1)
        self.edges.extend((number, before) for before in after)
        return number

    def finish(self) -> LoweredJob:
        """Return the arrays."""
        columns = self.columns
        numbers = {
            name: np.array(getattr(columns, name), dtype=np.int64)
            for name in (
                "thread",
                "stream",
                "queue",
                "seat",
                "waits",
                "kind",
                "dtype",
                "size_bytes",
                "device",
            )
        }
        return LoweredJob(
            operations=Operations(
                **numbers,
                is_batched=np.array(columns.is_batched, dtype=np.bool_),
                seat_communicator=np.array(self.seat_communicator, dtype=np.int64),
                seat_is_ordered=np.array(self.seat_is_ordered, dtype=np.bool_),
                edges=np.array(self.edges, dtype=np.int64).reshape(-1, 2),
            ),
            issued=tuple(self.issued),
            seats=tuple(self.seats),
            classes=self.classes,
        )
