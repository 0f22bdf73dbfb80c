"""The job program document: what the threads of each rank enqueue and where they wait.

What its fields mean for the proof is said in ``pace.solver.collective_order``.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, Index, JsonDocument, load, parse, repeated
from pace.documents.profile import Name
from pace.errors import InvalidJobProgram

CollectiveKind = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "barrier",
    "other",
]
Waiter = Literal["nobody", "stream", "thread"]
DEFAULT_STREAM = "default"


def _is_default(value: object) -> bool:
    return value is None or value == () or value == DEFAULT_STREAM


class ProcessGroup(Document):
    """One process group, or one dimension of a mesh: the same name on all ranks, but other peers.

    Attributes
    ----------
    communicators
        Sets of ranks that call collectives together. A rank is in one communicator of a group, or in none.
    backend
        With "nccl", collectives and transfers between two ranks run on the device, one at a time in each
        communicator. With "gloo", they do not wait for streams, and sends and receives do not wait for one
        another.
    transfers
        Where NCCL runs sends and receives that are not in a batch: in a communicator of each "pair" of ranks,
        or, if the group was made with a ``device_id``, in that of the "group".
    """

    refused_as = InvalidJobProgram

    name: Name
    communicators: Annotated[tuple[tuple[Index, ...], ...], Field(min_length=1)]
    backend: Literal["nccl", "gloo"] = "nccl"
    transfers: Annotated[Literal["pair", "group"], Field(exclude_if=lambda where: where == "pair")] = "pair"

    @cached_property
    def communicator_of(self) -> dict[int, int]:
        """The number of each rank's communicator."""
        return {rank: number for number, ranks in enumerate(self.communicators) for rank in ranks}


class MeetingFields(Document):
    """What collectives and transfers between two ranks have in common.

    Attributes
    ----------
    name
        Name in messages and in waits.
    size_bytes, dtype
        Size and dtype, which must be equal on all ranks that meet; null if they are unknown or may differ.
    stream
        Stream from which it is issued. It starts after the work that is already on that stream.
    wait
        Who waits for it at once: "nobody" (``async_op=True``), the "stream" from which it is issued (NCCL's
        ``async_op=False``), or the "thread" (Gloo's).
    stack
        Stack of the call, innermost frame first.
    """

    refused_as = InvalidJobProgram

    group: Name
    name: Annotated[Name | None, Field(exclude_if=_is_default)] = None
    size_bytes: Annotated[Bytes | None, Field(exclude_if=_is_default)] = None
    dtype: Annotated[Name | None, Field(exclude_if=_is_default)] = None
    stream: Annotated[Name, Field(exclude_if=_is_default)] = DEFAULT_STREAM
    wait: Waiter = "nobody"
    stack: Annotated[tuple[str, ...], Field(exclude_if=_is_default)] = ()


class EnqueuedCollective(MeetingFields):
    """A collective of all ranks of a communicator; `root` is a rank, for kinds that have one."""

    op: CollectiveKind
    root: Annotated[Index | None, Field(exclude_if=_is_default)] = None


class EnqueuedTransfer(MeetingFields):
    """A send to or receive from a rank. It ends when both have called it; those of one tag are in order."""

    op: Literal["send", "recv"]
    peer: Index
    tag: Annotated[Index, Field(exclude_if=lambda tag: tag == 0)] = 0


class EnqueuedWait(Document):
    """A wait for an operation, or for all of a group that this rank has enqueued so far.

    Attributes
    ----------
    operation
        Name of the operation: the last one of this name before the wait, or the only one in another thread.
    stream
        Stream that waits; null if the thread waits.
    """

    refused_as = InvalidJobProgram

    op: Literal["wait"]
    operation: Annotated[Name | None, Field(exclude_if=_is_default)] = None
    group: Annotated[Name | None, Field(exclude_if=_is_default)] = None
    stream: Annotated[Name | None, Field(exclude_if=lambda stream: stream is None)] = None
    stack: Annotated[tuple[str, ...], Field(exclude_if=_is_default)] = ()

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.operation is None) == (self.group is None):
            raise ValueError('a wait names either an "operation" or a "group"')
        return self


class Synchronization(Document):
    """The thread waits for all work of this rank's device, or for one stream (``tensor.item()``)."""

    refused_as = InvalidJobProgram

    op: Literal["synchronize"]
    stream: Annotated[Name | None, Field(exclude_if=lambda stream: stream is None)] = None
    name: Annotated[Name | None, Field(exclude_if=_is_default)] = None
    stack: Annotated[tuple[str, ...], Field(exclude_if=_is_default)] = ()


class TransferBatch(Document):
    """Sends and receives that start together (``batch_isend_irecv``)."""

    refused_as = InvalidJobProgram

    op: Literal["batch"]
    operations: Annotated[tuple[EnqueuedTransfer, ...], Field(min_length=1)]


EnqueuedMeeting = EnqueuedCollective | EnqueuedTransfer
EnqueuedOperation = Annotated[
    EnqueuedCollective | EnqueuedTransfer | EnqueuedWait | Synchronization | TransferBatch,
    Field(discriminator="op"),
]


class HostThread(Document):
    """Operations in the order in which one thread issues them."""

    refused_as = InvalidJobProgram

    name: Name = "main"
    operations: tuple[EnqueuedOperation, ...]

    def meetings(self) -> Iterator[EnqueuedMeeting]:
        """Yield collectives and transfers, also those in batches."""
        for operation in self.operations:
            if isinstance(operation, TransferBatch):
                yield from operation.operations
            elif isinstance(operation, EnqueuedCollective | EnqueuedTransfer):
                yield operation


class RankProgram(Document):
    """Operations of some ranks, which all enqueue the same.

    Attributes
    ----------
    is_cut_off
        Whether it is a record that ends before the ranks do, such as that of a hanging job. Then a rank with
        fewer operations may be waiting for those that it has enqueued.
    """

    refused_as = InvalidJobProgram

    ranks: Annotated[tuple[Index, ...], Field(min_length=1)]
    threads: tuple[HostThread, ...]
    is_cut_off: Annotated[bool, Field(exclude_if=lambda is_cut_off: not is_cut_off)] = False


class JobProgram(JsonDocument):
    """What every rank of a job enqueues.

    A job program that was built is valid: each rank has one program, and calls only groups that it is in.
    """

    refused_as = InvalidJobProgram

    schema_version: Literal[1] = 1
    name: Name = "job"
    groups: tuple[ProcessGroup, ...]
    programs: Annotated[tuple[RankProgram, ...], Field(min_length=1)]

    @cached_property
    def group_of(self) -> dict[str, ProcessGroup]:
        """Groups by their names."""
        return {group.name: group for group in self.groups}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (twice := repeated(group.name for group in self.groups)) is not None:
            raise ValueError(f'two groups are named "{twice}"')
        programmed = [rank for program in self.programs for rank in program.ranks]
        if (again := repeated(map(str, programmed))) is not None:
            raise ValueError(f"rank {again} has two programs")
        known = set(programmed)
        for group in self.groups:
            members = [rank for ranks in group.communicators for rank in ranks]
            if (again := repeated(map(str, members))) is not None:
                raise ValueError(f'group "{group.name}" has rank {again} twice')
            if not known.issuperset(members):
                missing = min(set(members) - known)
                raise ValueError(
                    f'group "{group.name}" has rank {missing}, which has no program: '
                    "add it, with no operations if it enqueues none"
                )
        for program in self.programs:
            if (thread := repeated(thread.name for thread in program.threads)) is not None:
                raise ValueError(f'rank {program.ranks[0]} has two threads "{thread}"')
            self._refuse_strangers(program)
        return self

    def _refuse_strangers(self, program: RankProgram) -> None:
        """Refuse calls of groups and peers that do not exist for a rank."""
        called: dict[str, set[int]] = {}
        for thread in program.threads:
            for operation in thread.operations:
                if isinstance(operation, EnqueuedWait) and operation.group not in (None, *self.group_of):
                    raise ValueError(
                        f'rank {program.ranks[0]} waits for group "{operation.group}": no such group'
                    )
            for meeting in thread.meetings():
                peers = called.setdefault(meeting.group, set())
                if isinstance(meeting, EnqueuedTransfer):
                    peers.add(meeting.peer)
        for name, peers in called.items():
            group = self.group_of.get(name)
            if group is None:
                raise ValueError(f'rank {program.ranks[0]} calls group "{name}": no such group')
            for rank in program.ranks:
                place = group.communicator_of.get(rank)
                if place is None:
                    raise ValueError(f'rank {rank} calls group "{name}", which it is not in')
                for peer in peers:
                    if peer == rank or group.communicator_of.get(peer) != place:
                        raise ValueError(
                            f'rank {rank} sends to or receives from rank {peer} in group "{name}": '
                            "expected another rank of its communicator"
                        )

    def to_json(self) -> bytes:
        """Serialize; the same program always gives the same bytes."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


def parse_job_program(document: bytes | str) -> JobProgram:
    """Read a job program from JSON; raises InvalidJobProgram with one line per fault."""
    return parse(JobProgram, document)


def load_job_program(path: str | Path) -> JobProgram:
    """Read a job program from a JSON file; raises InvalidJobProgram and OSError."""
    return load(parse_job_program, path, InvalidJobProgram)
