"""Findings in words: which rank waits in which operation of which group for whom, and where it was called."""

from pace.counted import counted
from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedMeeting,
    EnqueuedTransfer,
    EnqueuedWait,
    JobProgram,
    Synchronization,
)
from pace.documents.order.order_report import (
    CircleWait,
    FindingKind,
    OperationPlace,
    OrderFinding,
    OrderReport,
)
from pace.order.lowered_job import IssuedOperation, LoweredJob
from pace.solver.collective_order.decision import Absence, CircleStep, Disagreement, Misfit, OrderDecision

MOST_FRAMES = 6
_KINDS: dict[Disagreement, tuple[FindingKind, str]] = {
    Disagreement.KIND: ("kind", "ranks call different operations"),
    Disagreement.DTYPE: ("dtype", "ranks call an operation with different dtypes"),
    Disagreement.SIZE: ("size", "ranks call an operation with different sizes"),
}


def findings_of(job: JobProgram, lowered: LoweredJob, decision: OrderDecision) -> tuple[OrderFinding, ...]:
    """Return what makes the job hang: differences first, because circles may follow from them."""
    words = _Words(job, lowered)
    found = [words.misfit(misfit) for misfit in decision.misfits]
    found += [words.absence(absence) for absence in decision.absences]
    found += [words.shared(*pair) for pair in decision.shared]
    if decision.circle:
        found.append(words.circle(decision.circle))
    if decision.rank_circle:
        found.append(words.rank_circle(decision.rank_circle))
    return tuple(found)


def text_lines(report: OrderReport) -> list[str]:
    """Return a report as lines of text."""
    size = f"{counted(report.num_ranks, 'rank')}, {counted(report.num_operations, 'operation')}"
    if report.cannot_hang:
        lines = [f"{report.name} cannot hang: {size}."]
    else:
        lines = [f"{report.name} can hang: {size}."]
        for finding in report.findings:
            lines += ["", f"{finding.kind}: {finding.title}", *(f"  {line}" for line in finding.lines)]
    return [*lines, "", model_line(report), *(f"- {line}" for line in report.outside)]


def model_line(report: OrderReport) -> str:
    """Return what was assumed, in one line; what was not proved comes after it."""
    rule = "side by side" if report.streams == "side-by-side" else "in the order in which they are enqueued"
    slots = report.launch_slots
    room = "" if slots is None else f", with room for {counted(slots, 'operation')} on each stream"
    return f"Model: first in, first out in each group and stream; streams run {rule}{room}. Not proved:"


class _Words:
    def __init__(self, job: JobProgram, lowered: LoweredJob) -> None:
        self._job = job
        self._issued = lowered.issued
        self._seat = lowered.operations.seat
        self._seats = lowered.seats
        self._classes = lowered.classes

    def misfit(self, misfit: Misfit) -> OrderFinding:
        """Two operations that meet and differ."""
        kind, title = _KINDS[misfit.disagreement]
        one, other = self._issued[misfit.one], self._issued[misfit.other]
        rank = self._rank(one)
        peer = self._peer(misfit.one, rank, other.rank_class)
        lines = [f"rank {rank} calls {self._call(one)}", *_stack(one.document)]
        lines += [f"rank {peer} calls {self._call(other)}", *_stack(other.document)]
        return OrderFinding(
            kind=kind,
            ranks=(rank, peer),
            title=f"{title} {self._place(misfit.one)}",
            lines=tuple(lines),
            operations=(_at(rank, one), _at(peer, other)),
        )

    def absence(self, absence: Absence) -> OrderFinding:
        """A rank that calls fewer operations than another."""
        issued = self._issued[absence.present]
        rank = self._rank(issued)
        seat = self._seats[absence.absent_seat]
        peer = self._peer(absence.present, rank, seat.rank_class)
        number = "none" if not absence.number else f"only {absence.number}"
        what = (
            f'the operations of group "{seat.group}"'
            if seat.transfer is None
            else self._transfers(seat.transfer)
        )
        return OrderFinding(
            kind="count",
            ranks=(rank, peer),
            title=f"rank {peer} calls {number} of {what}, and rank {rank} calls more",
            lines=(f"rank {rank} calls {self._call(issued)}", *_stack(issued.document)),
            operations=(_at(rank, issued),),
        )

    def shared(self, one: int, other: int) -> OrderFinding:
        """Two threads on one queue."""
        first, second = self._issued[one], self._issued[other]
        rank = self._rank(first)
        lines = []
        for issued in (first, second):
            lines += [f'thread "{issued.thread}" calls {self._call(issued)}', *_stack(issued.document)]
        return OrderFinding(
            kind="order",
            ranks=(rank,),
            title=f'threads "{first.thread}" and "{second.thread}" of rank {rank} share a group or a stream: '
            "the order of their operations depends on chance",
            lines=tuple(lines),
            operations=(_at(rank, first), _at(rank, second)),
        )

    def circle(self, circle: tuple[CircleStep, ...]) -> OrderFinding:
        """Ranks that wait for one another."""
        walk = self._lifted(circle)
        lines, waits = [], []
        for (rank, step), (peer, _) in zip(walk, walk[1:] + walk[:1], strict=True):
            waits_in = self._issued[step.waits_in]
            waits.append(
                CircleWait(
                    rank=rank,
                    operation=self._call(waits_in),
                    waits_for=peer,
                    at=_at(rank, waits_in),
                    missing=_at(rank, self._issued[step.missing]),
                )
            )
            lines.append(f"rank {rank} waits in {self._call(waits_in)} for rank {peer}")
            lines += _stack(waits_in.document)
            held = None if step.held_at is None else self._issued[step.held_at]
            missing = self._call(self._issued[step.missing])
            if held is None:
                lines.append(f"  until then it cannot start {missing}")
            elif step.held_at == step.waits_in:
                lines.append(f'  its thread "{held.thread}" waits there and has not called {missing}')
            else:
                lines.append(
                    f'  its thread "{held.thread}" waits at {self._call(held)} and has not called {missing}'
                )
                lines += _stack(held.document)
        ranks = tuple(dict.fromkeys(rank for rank, _ in walk))
        return OrderFinding(
            kind="circle",
            ranks=ranks,
            title=f"{len(ranks)} ranks wait for one another",
            lines=tuple(lines),
            waits=tuple(waits),
        )

    def rank_circle(self, circle: tuple[int, ...]) -> OrderFinding:
        """Operations of one rank that wait for one another."""
        rank = self._rank(self._issued[circle[0]])
        lines = []
        for number in circle:
            issued = self._issued[number]
            lines += [f'thread "{issued.thread}": {self._call(issued)}', *_stack(issued.document)]
        return OrderFinding(
            kind="circle",
            ranks=(rank,),
            title=f"rank {rank} waits for itself: each of these waits for the next, the last for the first",
            lines=tuple(lines),
            operations=tuple(_at(rank, self._issued[number]) for number in circle),
        )

    def _lifted(self, circle: tuple[CircleStep, ...]) -> list[tuple[int, CircleStep]]:
        """Return the circle of classes as one of ranks; it may go round several times before it closes."""
        rank = self._rank(self._issued[circle[0].waits_in])
        first_visit: dict[tuple[int, int], int] = {}
        walk: list[tuple[int, CircleStep]] = []
        place = 0
        while (place, rank) not in first_visit:
            first_visit[place, rank] = len(walk)
            step = circle[place]
            walk.append((rank, step))
            place = (place + 1) % len(circle)
            rank = self._peer(step.waits_in, rank, self._issued[circle[place].waits_in].rank_class)
        return walk[first_visit[place, rank] :]

    def _rank(self, issued: IssuedOperation) -> int:
        return self._classes.first_rank[issued.rank_class]

    def _peer(self, operation: int, rank: int, rank_class: int) -> int:
        """Return a rank of a class that `rank` meets in an operation."""
        seat = self._seats[int(self._seat[operation])]
        if seat.transfer is not None:
            return seat.transfer[0] if seat.transfer[1] == rank else seat.transfer[1]
        group = self._job.group_of[seat.group]
        members: tuple[int, ...] = group.communicators[group.communicator_of[rank]]
        class_of = self._classes.class_of
        return min(member for member in members if class_of[member] == rank_class)

    def _place(self, operation: int) -> str:
        seat = self._seats[int(self._seat[operation])]
        number = (self._issued[operation].number or 0) + 1
        if seat.transfer is not None:
            return f"as number {number} of {self._transfers(seat.transfer)}"
        return f'as number {number} of group "{seat.group}"'

    @staticmethod
    def _transfers(transfer: tuple[int, int]) -> str:
        return f"the transfers from rank {transfer[0]} to rank {transfer[1]}"

    def _call(self, issued: IssuedOperation) -> str:
        document = issued.document
        match document:
            case EnqueuedCollective() | EnqueuedTransfer():
                return _meeting(document, issued.number)
            case EnqueuedWait():
                what = f'group "{document.group}"' if document.group else f'"{document.operation}"'
                who = "" if document.stream is None else f' of stream "{document.stream}"'
                return f"the wait{who} for {what}"
            case Synchronization():
                what = "the device" if document.stream is None else f'stream "{document.stream}"'
                name = "" if document.name is None else f' "{document.name}"'
                return f"the synchronization{name} with {what}"
        return "a launch or a batch"


def _at(rank: int, issued: IssuedOperation) -> OperationPlace:
    return OperationPlace(rank=rank, thread=issued.thread, number=issued.place)


def _meeting(meeting: EnqueuedMeeting, number: int | None) -> str:
    name = "" if meeting.name is None else f' "{meeting.name}"'
    details = []
    if isinstance(meeting, EnqueuedTransfer):
        where = f"to rank {meeting.peer}" if meeting.op == "send" else f"from rank {meeting.peer}"
        details.append(f'{where} in group "{meeting.group}"')
    else:
        details.append(f'number {(number or 0) + 1} of group "{meeting.group}"')
        if meeting.root is not None:
            details.append(f"root {meeting.root}")
    if meeting.size_bytes is not None:
        details.append(f"{meeting.size_bytes:,} bytes")
    if meeting.dtype is not None:
        details.append(meeting.dtype)
    return f"{meeting.op}{name} ({', '.join(details)})"


def _stack(document: object) -> list[str]:
    frames: tuple[str, ...] = getattr(document, "stack", ())
    shown = [f"    {frame}" for frame in frames[:MOST_FRAMES]]
    if len(frames) > MOST_FRAMES:
        shown.append(f"    and {len(frames) - MOST_FRAMES} more")
    return shown
