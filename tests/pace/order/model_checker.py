"""The judge of proofs: it tries every execution of a small job, one step after another.

It shares no code with the proof, only the document. A state is how far each thread has come, and which
operations have started and ended. Every thread and every operation that can go on may do so next.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedTransfer,
    EnqueuedWait,
    JobProgram,
    Synchronization,
    TransferBatch,
)

Outcome = Literal["ends", "hangs", "both"]
Step = tuple[int, str, int, int]  # rank, thread, place in the thread, place in the batch
State = tuple[tuple[int, ...], int, int]  # places of threads; what has started, and ended, as bits


@dataclass(slots=True)
class Part:
    """What the rules say of one operation: whom it must not start before, whom it meets, who waits."""

    behind: set[Step] = field(default_factory=set)
    meets: tuple[Hashable, int] | None = None
    blocks: bool = False
    full_until: set[Step] = field(default_factory=set)
    on_device: bool = False


def outcome(job: JobProgram, *, in_launch_order: bool = False, slots: int | None = None) -> Outcome:
    """Return whether executions end, hang, or some do this and some that."""
    return _Checker(job, in_launch_order, slots).explore()


class _Checker:
    def __init__(self, job: JobProgram, in_launch_order: bool, slots: int | None) -> None:
        self.parts: dict[Step, Part] = {}
        self.threads: list[list[list[Step]]] = []
        self.in_launch_order = in_launch_order
        self.slots = slots
        self.meetings: defaultdict[tuple[Hashable, int], list[Step]] = defaultdict(list)
        self.described: dict[Step, tuple[object, int | None, str | None]] = {}
        self.groups = {group.name: group for group in job.groups}
        self.shares = False
        self.expected: dict[Hashable, int] = {}
        self.launches: dict[int, list[Step]] = {}
        for program in job.programs:
            for rank in program.ranks:
                self._read_rank(rank, program.threads)
        self.bad = {
            meeting
            for meeting, steps in self.meetings.items()
            if len(steps) != self.expected[meeting[0]] or self._differ(steps)
        }

    def _differ(self, steps: list[Step]) -> bool:
        for field_number in range(3):
            known = {self.described[step][field_number] for step in steps} - {None}
            if len(known) > 1:
                return True
        return False

    def _read_rank(self, rank: int, threads: tuple[object, ...]) -> None:
        lanes: defaultdict[Hashable, list[Step]] = defaultdict(list)
        owners: defaultdict[Hashable, set[str]] = defaultdict(set)
        counts: defaultdict[Hashable, int] = defaultdict(int)
        foreign: list[tuple[Part, str]] = []
        every_name: defaultdict[str, list[Step]] = defaultdict(list)
        self.launches[rank] = []
        for thread in threads:
            names: dict[str, Step] = {}
            rows: list[list[Step]] = []
            for place, operation in enumerate(thread.operations):  # type: ignore[attr-defined]  # a HostThread
                row = list(self._read(rank, thread.name, place, operation, lanes, owners, counts))  # type: ignore[attr-defined]
                if isinstance(operation, EnqueuedWait):
                    part = self.parts[row[-1]]
                    if operation.operation is not None and operation.operation not in names:
                        foreign.append((part, operation.operation))
                    elif operation.operation is not None:
                        part.behind.add(names[operation.operation])
                for step, document in zip(row, getattr(operation, "operations", [operation]), strict=False):
                    name = getattr(document, "name", None)
                    if name is not None and not isinstance(document, Synchronization):
                        names[name] = step
                        every_name[name].append(step)
                rows.append(row)
            self.threads.append(rows)
        for part, name in foreign:
            (target,) = every_name[name]
            part.behind.add(target)
        self.shares = self.shares or any(len(users) > 1 for users in owners.values())

    def _read(
        self,
        rank: int,
        thread: str,
        place: int,
        operation: object,
        lanes: defaultdict[Hashable, list[Step]],
        owners: defaultdict[Hashable, set[str]],
        counts: defaultdict[Hashable, int],
    ) -> Iterator[Step]:
        step: Step = (rank, thread, place, 0)
        match operation:
            case EnqueuedCollective() | EnqueuedTransfer():
                yield self._meet(step, operation, lanes, owners, counts, operation.wait, batched=False)
            case EnqueuedWait():
                part = self.parts[step] = Part(blocks=operation.stream is None)
                if operation.group is not None:
                    part.behind.update(lanes["all of", operation.group])
                if operation.stream is not None:
                    self._run_on(step, ("stream", operation.stream), lanes, owners)
                    self._launch(step, owners)
                yield step
            case Synchronization():
                part = self.parts[step] = Part(blocks=True)
                for lane, steps in lanes.items():
                    wanted = operation.stream is None or lane == ("stream", operation.stream)
                    if isinstance(lane, tuple) and lane[0] in ("stream", "group", "pair") and wanted:
                        part.behind.update(steps)
                yield step
            case TransferBatch():
                yield from self._batch(step, operation, lanes, owners, counts)
            case _:
                raise AssertionError

    def _batch(
        self,
        step: Step,
        batch: TransferBatch,
        lanes: defaultdict[Hashable, list[Step]],
        owners: defaultdict[Hashable, set[str]],
        counts: defaultdict[Hashable, int],
    ) -> Iterator[Step]:
        rank, thread, place, _ = step
        before = {transfer.group: list(lanes["group", transfer.group]) for transfer in batch.operations}
        ends: defaultdict[str, list[Step]] = defaultdict(list)
        for number, transfer in enumerate(batch.operations):
            member = (rank, thread, place, number)
            self._meet(member, transfer, lanes, owners, counts, "nobody", batched=True)
            if self.groups[transfer.group].backend == "nccl":
                self.parts[member].behind.update(before[transfer.group])
            ends[transfer.group].append(member)
            yield member
        waiters = {transfer.wait for transfer in batch.operations}
        for number, (group, members) in enumerate(ends.items(), start=len(batch.operations)):
            on_device = self.groups[group].backend == "nccl"
            end = (rank, thread, place, number)
            blocks = "thread" in waiters or (not on_device and "stream" in waiters)
            part = self.parts[end] = Part(blocks=blocks, behind=set(members))
            if on_device:
                self._run_on(end, ("group", group), lanes, owners)
                stream = ("stream", batch.operations[0].stream)
                part.behind.update(lanes[stream])
                if waiters != {"nobody"}:
                    lanes[stream].append(end)
                    owners[stream].add(thread)
                self._launch(end, owners)
            yield end

    def _meet(
        self,
        step: Step,
        meeting: EnqueuedCollective | EnqueuedTransfer,
        lanes: defaultdict[Hashable, list[Step]],
        owners: defaultdict[Hashable, set[str]],
        counts: defaultdict[Hashable, int],
        waiter: str,
        *,
        batched: bool,
    ) -> Step:
        rank, thread = step[:2]
        group = self.groups[meeting.group]
        on_device = group.backend == "nccl"
        part = self.parts[step] = Part(blocks=waiter == "thread" or (waiter == "stream" and not on_device))
        kind: object = "transfer"
        place: Hashable
        if isinstance(meeting, EnqueuedTransfer):
            ends = (rank, meeting.peer) if meeting.op == "send" else (meeting.peer, rank)
            has_pairs = on_device and group.transfers == "pair"
            place = ("transfer", meeting.group, ends, meeting.tag, batched and has_pairs)
            self.expected[place] = 2
        else:
            kind = (meeting.op, meeting.root)
            place = ("collective", meeting.group, group.communicator_of[rank])
            self.expected[place] = len(group.communicators[group.communicator_of[rank]])
        part.meets = (place, counts[place])
        counts[place] += 1
        self.meetings[part.meets].append(step)
        self.described[step] = (kind, meeting.size_bytes, meeting.dtype)
        if on_device or isinstance(meeting, EnqueuedCollective):
            self._run_on(step, ("at", place), lanes, owners)
        owners["at", place].add(thread)
        if on_device:
            stream = ("stream", meeting.stream)
            part.behind.update(lanes[stream])
            owners[stream].add(thread)
            pair = isinstance(meeting, EnqueuedTransfer) and not batched and group.transfers == "pair"
            lane = ("pair", meeting.group, frozenset(ends)) if pair else ("group", meeting.group)
            if not batched:
                self._run_on(step, lane, lanes, owners)
            owners[lane].add(thread)
            if waiter != "nobody":
                lanes[stream].append(step)
            self._launch(step, owners)
        lanes["all of", meeting.group].append(step)
        return step

    def _launch(self, step: Step, owners: defaultdict[Hashable, set[str]]) -> None:
        self.launches[step[0]].append(step)
        self.parts[step].on_device = True
        if self.in_launch_order:
            owners["device"].add(step[1])

    def _run_on(
        self,
        step: Step,
        lane: Hashable,
        lanes: defaultdict[Hashable, list[Step]],
        owners: defaultdict[Hashable, set[str]],
    ) -> None:
        part = self.parts[step]
        part.behind.update(lanes[lane])
        if self.slots is not None and isinstance(lane, tuple) and lane[0] != "at":
            # With room for k, the k-th before it has ended; those before that ended earlier.
            held = lanes[lane]
            part.full_until.update(held[: len(held) - self.slots + 1])
        lanes[lane].append(step)
        owners[lane].add(step[1])

    def explore(self) -> Outcome:
        """Try every execution."""
        if self.shares:
            return "hangs"
        self._number()
        first: State = ((0,) * len(self.threads), 0, 0)
        seen = {first}
        line = [first]
        outcomes: set[Outcome] = set()
        everything = (1 << len(self.parts)) - 1
        while line:
            state = line.pop()
            following = self._next(state)
            if not following:
                outcomes.add("ends" if state[2] == everything else "hangs")
            for after in following:
                if after not in seen:
                    seen.add(after)
                    line.append(after)
        return outcomes.pop() if len(outcomes) == 1 else "both"

    def _number(self) -> None:
        """Give each operation a bit, so that a set of operations is a number."""
        bit = {step: 1 << number for number, step in enumerate(self.parts)}

        def mask(steps: Iterable[Step]) -> int:
            return sum(bit[step] for step in set(steps))

        # Before a thread's next row: what must have ended. After it: what is issued.
        self.gates: list[list[int]] = []
        self.issued: list[list[int]] = []
        for rows in self.threads:
            gates, issued = [], [0]
            for place, row in enumerate(rows):
                blocking = [step for earlier in rows[:place] for step in earlier if self.parts[step].blocks]
                full = [until for step in row for until in self.parts[step].full_until]
                gates.append(mask([*blocking, *full]))
                issued.append(issued[-1] | mask(row))
            self.gates.append(gates)
            self.issued.append(issued)
        self.starts: list[tuple[int, int, int]] = []
        for step, part in self.parts.items():
            queued = self.launches[step[0]] if self.in_launch_order and part.on_device else []
            first = queued[: queued.index(step)] if queued else []
            self.starts.append((bit[step], mask(part.behind), mask(first)))
        self.ends: list[int] = [bit[step] for step, part in self.parts.items() if part.meets is None]
        self.ends += [mask(steps) for meets, steps in self.meetings.items() if meets not in self.bad]

    def _next(self, state: State) -> list[State]:
        places, started, ended = state
        following: list[State] = []
        issued = 0
        for number, place in enumerate(places):
            issued |= self.issued[number][place]
            gates = self.gates[number]
            if place < len(gates) and not gates[place] & ~ended:
                following.append(((*places[:number], place + 1, *places[number + 1 :]), started, ended))
        ready = 0
        for own, behind, first in self.starts:
            if own & issued and not own & started and not behind & ~ended and not first & ~started:
                if self.in_launch_order:
                    following.append((places, started | own, ended))
                ready |= own
        # When an operation starts matters to no other, unless the device starts them in order.
        here = started if self.in_launch_order else ready
        for meeting in self.ends:
            if meeting & ~ended and not meeting & ~here:
                after = 0 if not self.in_launch_order else started
                following.append((places, after, ended | meeting))
        return following
