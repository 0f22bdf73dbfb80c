"""Values about tasks: the outcome of a submission, a claimed task, and a task's status."""

from dataclasses import dataclass, field
from datetime import datetime

from pace.api.questions.all_kinds import KINDS
from pace.api.storage.questions import StoredAnswer
from pace.api.tasks.solve_size import is_small
from pace.client.documents import Problem

LIVE = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The outcome of a submission: an existing result, or the task that will produce it.

    Attributes
    ----------
    result
        The result, if it exists.
    task_id
        Id of the task; None if the result exists.
    unsolved
        The row of a pending result, so that waiting requests need no second query.
    claimed
        The task, if it is new and this process runs it now.
    """

    result_id: str
    result: StoredAnswer | None
    task_id: str | None
    unsolved: StoredAnswer | None = None
    claimed: "ClaimedTask | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task that this process must run, with its input compressed by zlib.

    Attributes
    ----------
    object_key
        Where the document is, if in object storage.
    request_id
        Id of the request that asked for it first.
    """

    id: str
    kind: str
    name: str | None
    tenant: str
    key: str
    result_id: str
    attempts: int
    num_gradients: int
    num_ops: int
    num_total: int | None
    document: bytes
    object_key: str | None
    options: str
    created_at: datetime
    started_at: datetime
    request_id: str | None

    @property
    def large(self) -> bool:
        """Whether the task may take long, so that it must not use the place for small tasks."""
        return not is_small(self.num_ops, self.num_gradients, self.options)

    def done(self, at: datetime, document: bytes | None) -> "TaskStatus":
        """Return the status after the result is stored."""
        return TaskStatus(
            id=self.id,
            kind=self.kind,
            name=self.name,
            result_id=self.result_id,
            state="done",
            problem=None,
            num_done=self.num_total,
            num_total=self.num_total,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=at,
            document=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The status of a task.

    Attributes
    ----------
    name
        The job, or the name of what it is about; None if the input was deleted.
    document
        The stored result, if this process has just produced it.
    """

    id: str
    kind: str
    name: str | None
    result_id: str
    state: str
    problem: Problem | None
    num_done: int | None
    num_total: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    document: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def live(self) -> bool:
        """Whether the task is queued or running."""
        return self.state in LIVE

    @property
    def location(self) -> str:
        """Path of the result, which may not exist yet."""
        return f"{KINDS[self.kind].path}/{self.result_id}"
