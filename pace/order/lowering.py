"""From a job program to the arrays of the proof: what each operation waits for, and where it runs."""

from collections import defaultdict
from collections.abc import Hashable

from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedMeeting,
    EnqueuedTransfer,
    EnqueuedWait,
    HostThread,
    JobProgram,
    Synchronization,
)
from pace.documents.order.order_report import StreamRule
from pace.errors import InvalidJobProgram
from pace.order.lowered_job import GrowingJob, IssuedOperation, LoweredJob
from pace.order.rank_classes import classify
from pace.solver.collective_order.operations import NO_WAIT, STREAM_WAITS, THREAD_WAITS

_WAITS = {"nobody": NO_WAIT, "stream": STREAM_WAITS, "thread": THREAD_WAITS}


def lower(
    job: JobProgram, *, streams: StreamRule = "side-by-side", launch_slots: int | None = None
) -> LoweredJob:
    """Return the arrays of a job, with one rank for each class of ranks that do the same."""
    growing = GrowingJob(job, classify(job), streams, launch_slots)
    for rank_class, program in enumerate(growing.classes.programs):
        _RankLowering(growing, rank_class).lower(program.threads)
    return growing.finish()


class _RankLowering:
    """The operations of one rank, which stands for its class."""

    def __init__(self, job: GrowingJob, rank_class: int) -> None:
        self._all = job
        self._class = rank_class
        self._rank = job.classes.first_rank[rank_class]
        self._by_name: dict[tuple[str, str], int] = {}
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._in_group: defaultdict[str, dict[Hashable, list[int]]] = defaultdict(dict)
        self._on_queue: defaultdict[int, list[int]] = defaultdict(list)
        self._reached: defaultdict[int, int] = defaultdict(int)
        self._foreign_waits: list[tuple[int, EnqueuedWait]] = []
        self._users: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._readers: list[tuple[str, Hashable]] = []
        self._place = 0

    def lower(self, threads: tuple[HostThread, ...]) -> None:
        for thread in threads:
            for self._place, operation in enumerate(thread.operations):
                match operation:
                    case EnqueuedCollective() | EnqueuedTransfer():
                        self._meet(thread.name, operation)
                    case EnqueuedWait():
                        self._wait(thread.name, operation)
                    case Synchronization():
                        self._synchronize(thread.name, operation)
                    case _:
                        self._batch(thread.name, operation.operations)
        for number, wait in self._foreign_waits:
            targets = self._names[wait.operation or ""]
            if len(targets) != 1:
                found = (
                    "no operation has that name"
                    if not targets
                    else f"{len(targets)} of other threads have that name"
                )
                raise InvalidJobProgram(f'rank {self._rank} waits for "{wait.operation}": {found}')
            self._all.edges.append((number, targets[0]))
        for reader, place in self._readers:
            others = self._users[place] - {reader}
            if others:
                raise InvalidJobProgram(
                    f'rank {self._rank}: thread "{reader}" waits for all that is enqueued so far, also by '
                    f'thread "{min(others)}", and how much that is depends on chance: '
                    "wait for an operation by its name"
                )

    def _thread(self, name: str) -> int:
        return self._all.number("thread", self._class, name)

    def _queue(self, *key: Hashable) -> int:
        return self._all.number("queue", self._class, *key)

    def _issued(self, thread: str, document: object, number: int | None = None) -> IssuedOperation:
        return IssuedOperation(
            rank_class=self._class,
            thread=thread,
            place=self._place,
            document=document,  # type: ignore[arg-type]  # one of the documents
            number=number,
        )

    def _meet(self, thread: str, meeting: EnqueuedMeeting, *, is_batched: bool = False) -> int:
        everyone = self._all
        on_device = everyone.job.group_of[meeting.group].backend == "nccl"
        if isinstance(meeting, EnqueuedTransfer):
            seat = everyone.transfer_seat(self._rank, meeting, is_batched=is_batched)
            queue_key: tuple[Hashable, ...] = ("group", meeting.group)
            if not is_batched and everyone.has_pairs(meeting.group):
                queue_key = ("pair", meeting.group, frozenset({self._rank, meeting.peer}))
            kind: Hashable = "transfer"
        else:
            seat = everyone.seat_numbers[meeting.group, self._class]
            queue_key = ("group", meeting.group)
            kind = (meeting.op, meeting.root)
        stream = self._queue("stream", meeting.stream) if on_device else -1
        queue = self._queue(*queue_key) if on_device else -1
        if not is_batched:
            self._await_room(thread, queue)
        waits = _WAITS[meeting.wait]
        if not on_device and waits == STREAM_WAITS:
            waits = THREAD_WAITS  # nothing of Gloo's runs on a stream
        number = everyone.add(
            self._issued(thread, meeting, self._reached[seat]),
            self._thread(thread),
            stream=stream,
            queue=queue,
            seat=seat,
            waits=waits,
            kind=everyone.label(("kind", kind)),
            dtype=-1 if meeting.dtype is None else everyone.label(("dtype", meeting.dtype)),
            size_bytes=-1 if meeting.size_bytes is None else meeting.size_bytes,
            is_batched=is_batched,
        )
        self._reached[seat] += 1
        self._users["group", meeting.group].add(thread)
        if meeting.name is not None:
            self._by_name[thread, meeting.name] = number
            self._names[meeting.name].append(number)
        if everyone.seat_is_ordered[seat]:
            self._in_group[meeting.group][seat] = [number]
        else:
            self._in_group[meeting.group].setdefault(seat, []).append(number)
        self._note_on_device(thread, number, stream if waits != NO_WAIT else -1, -1 if is_batched else queue)
        return number

    def _note_on_device(self, thread: str, number: int, *queues: int) -> None:
        for queue in queues:
            if queue >= 0:
                self._on_queue[queue].append(number)
                self._users[queue].add(thread)
                self._users["device"].add(thread)

    def _await_room(self, thread: str, queue: int) -> None:
        slots = self._all.launch_slots
        held = self._on_queue[queue] if queue >= 0 else []
        if slots is not None and len(held) >= slots:
            self._all.add(
                self._issued(thread, None), self._thread(thread), waits=THREAD_WAITS, after=(held[-slots],)
            )

    def _wait(self, thread: str, wait: EnqueuedWait) -> None:
        after: tuple[int, ...]
        is_foreign = False
        if wait.group is not None:
            after = tuple(op for ops in self._in_group[wait.group].values() for op in ops)
            self._readers.append((thread, ("group", wait.group)))
        else:
            own = self._by_name.get((thread, wait.operation or ""))
            is_foreign = own is None
            after = () if own is None else (own,)
        stream = -1 if wait.stream is None else self._queue("stream", wait.stream)
        self._await_room(thread, stream)
        number = self._all.add(
            self._issued(thread, wait),
            self._thread(thread),
            stream=stream,
            queue=stream,
            waits=THREAD_WAITS if stream < 0 else STREAM_WAITS,
            after=after,
        )
        self._note_on_device(thread, number, stream)
        if is_foreign:
            self._foreign_waits.append((number, wait))

    def _synchronize(self, thread: str, synchronization: Synchronization) -> None:
        if synchronization.stream is None:
            after = [ops[-1] for ops in self._on_queue.values() if ops]
            self._readers.append((thread, "device"))
        else:
            queue = self._queue("stream", synchronization.stream)
            after = self._on_queue[queue][-1:]
            self._readers.append((thread, queue))
        self._all.add(
            self._issued(thread, synchronization),
            self._thread(thread),
            waits=THREAD_WAITS,
            after=tuple(dict.fromkeys(after)),
        )

    def _batch(self, thread: str, transfers: tuple[EnqueuedTransfer, ...]) -> None:
        groups = dict.fromkeys(transfer.group for transfer in transfers)
        for group in groups:
            if self._all.job.group_of[group].backend == "nccl":
                self._await_room(thread, self._queue("group", group))
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for transfer in transfers:
            started = transfer.model_copy(update={"wait": "nobody"})
            numbers[transfer.group].append(self._meet(thread, started, is_batched=True))
        waits = max(_WAITS[transfer.wait] for transfer in transfers)
        for group, members in numbers.items():
            on_device = self._all.job.group_of[group].backend == "nccl"
            queue = self._queue("group", group) if on_device else -1
            stream = self._queue("stream", transfers[0].stream) if on_device else -1
            waits_here = waits if on_device or waits == NO_WAIT else THREAD_WAITS
            if not on_device and waits == NO_WAIT:
                continue
            number = self._all.add(
                self._issued(thread, None),
                self._thread(thread),
                stream=stream,
                queue=queue,
                waits=waits_here,
                after=tuple(members),
            )
            self._note_on_device(thread, number, queue, stream if waits != NO_WAIT else -1)
