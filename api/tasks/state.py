"""What is known of a task: what a request came to, what is to be done, how far it is."""

from dataclasses import dataclass, field
from datetime import datetime

from pace.api.questions.registry import KINDS
from pace.api.storage.questions import StoredAnswer
from pace.api.tasks.solve_size import is_small
from pace.client.documents import Problem

LIVE = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a request came to: a result that is there, or the task that will make it.

    Attributes
    ----------
    result
        The result if it is there.
    task_id
        None if the result is there.
    unsolved
        What is stored of the result while the task goes on: all but its document.
    claimed
        The task if it is new and this process is to do it now.
    """

    result_id: str
    result: StoredAnswer | None
    task_id: str | None
    unsolved: StoredAnswer | None = None
    claimed: "ClaimedTask | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task that this process now has to do, on a document that is compressed by zlib.

    Attributes
    ----------
    object_key
        Where the document is, if in object storage.
    request_id
        Of the request that asked for it first.
    """

    id: str
    kind: str
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
        """Whether it may take long: not for the place that is kept for small ones."""
        return not is_small(self.num_ops, self.num_gradients, self.options)

    def done(self, at: datetime, document: bytes | None) -> "TaskStatus":
        """Return how far it is once its document is stored."""
        return TaskStatus(
            id=self.id,
            kind=self.kind,
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
    """How far a task is.

    Attributes
    ----------
    document
        What came of it and is stored, if this process did it just now.
    """

    id: str
    kind: str
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
        """Whether the task is still to be done."""
        return self.state in LIVE

    @property
    def location(self) -> str:
        """Where the result is or will be."""
        return f"{KINDS[self.kind].path}/{self.result_id}"
