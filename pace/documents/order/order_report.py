"""The order report: whether a job can hang, and what shows it."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document, Index
from pace.documents.profile import Name

FindingKind = Literal["circle", "kind", "dtype", "size", "count", "order"]
StreamRule = Literal["side-by-side", "launch-order"]


class OperationPlace(Document):
    """Where an operation stands in the job program: its number in a thread of a rank, from 0."""

    rank: Index
    thread: Name
    number: Index


class CircleWait(Document):
    """A rank of a circle: in which operation it waits, and for whom.

    Attributes
    ----------
    at
        Place of that operation in the job program.
    missing
        Place of the operation for which the previous rank of the circle waits, and which has not started.
    """

    rank: Index
    operation: str
    waits_for: Index
    at: Annotated[OperationPlace | None, Field(exclude_if=lambda place: place is None)] = None
    missing: Annotated[OperationPlace | None, Field(exclude_if=lambda place: place is None)] = None


class OrderFinding(Document):
    """One reason why the job can hang.

    Attributes
    ----------
    kind
        "circle": ranks wait for one another. "kind", "dtype", "size": operations that meet differ. "count":
        a rank calls fewer operations of a group than others. "order": two threads use one group or stream,
        so the order of their operations depends on chance.
    ranks
        Numbers of the ranks that this finding is about.
    title
        What is wrong, in one line.
    lines
        Details: which rank waits in which operation for which rank, and where the operation was called.
    waits
        In a circle of several ranks: the wait of each rank. Each waits for the next, and the last for the
        first.
    operations
        Places of the operations of other findings.
    """

    kind: FindingKind
    ranks: tuple[Index, ...]
    title: str
    lines: tuple[str, ...]
    waits: Annotated[tuple[CircleWait, ...], Field(exclude_if=lambda waits: not waits)] = ()
    operations: Annotated[tuple[OperationPlace, ...], Field(exclude_if=lambda places: not places)] = ()


class OrderReport(Document):
    """The proof that a job's collectives cannot hang, or the ranks that wait for one another.

    Attributes
    ----------
    num_programs
        Number of different programs; ranks that do the same share one.
    num_operations
        Number of operations of all ranks together.
    outside
        What the proof does not cover.
    """

    schema_version: Literal[1] = 1
    name: Name
    cannot_hang: bool
    streams: StreamRule
    launch_slots: Annotated[int, Field(ge=1)] | None = None
    num_ranks: Index
    num_programs: Index
    num_operations: Index
    findings: tuple[OrderFinding, ...]
    outside: tuple[str, ...]
