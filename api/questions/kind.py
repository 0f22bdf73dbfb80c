"""What a kind of question is: everything by which kinds differ. A request of any is a ``Question``."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from pydantic import create_model

from pace.documents.base import Document
from pace.version import __version__

SCHEDULE = "schedule"
Tell = Callable[[int], None]
_TELL_EVERY_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much a body may hold once it is decompressed."""

    max_bytes: int
    max_ops: int
    max_gradients: int
    max_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDocument:
    """What a request brings along to be worked on.

    Attributes
    ----------
    document
        Its JSON, compressed by zlib, as it is stored.
    object_key, object_bytes
        Where the document is and how long, if it is in object storage; then `document` is empty.
    """

    sha256: str
    name: str
    document: bytes
    object_key: str | None = None
    object_bytes: int | None = None

    @property
    def stored_bytes(self) -> int:
        """How long the document is as it is stored."""
        return len(self.document) if self.object_bytes is None else self.object_bytes

    def moved(self, object_key: str) -> Self:
        """Return the same with its document in object storage."""
        return replace(self, document=b"", object_key=object_key, object_bytes=len(self.document))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedProfile(InputDocument):
    """A valid profile; `size_bytes` is the length of its JSON."""

    fingerprint: str
    num_ops: int
    num_gradients: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """A valid request.

    Attributes
    ----------
    input_sha256, input
        What it is about, and the document unless it is stored already.
    options
        Canonical JSON of all else that is asked.
    num_steps
        In what progress is counted; None if it cannot be told.
    asked_by
        The id of the API key, or whom the issuer's token names; equal requests of two are one.
    is_repeated
        Whether this service process has read an equal body before, and not long ago.
    """

    kind: str
    input_sha256: str
    input: InputDocument | None
    options: str
    num_steps: int | None = None
    job: str | None = None
    asked_by: str | None = None
    is_repeated: bool = False

    @cached_property
    def key(self) -> str:
        """SHA-256 over kind, version, input and options: equal keys have equal answers."""
        return _hash("\n", self.kind, __version__, self.input_sha256, self.options)

    @property
    def identity(self) -> tuple[str | None, ...]:
        """Equal for requests that may be accepted together."""
        return (self.kind, self.job, self.key)

    def id_of(self, tenant: str) -> str:
        """Return the id that it has as a tenant's and its job's; 32 hexadecimal digits."""
        return _hash("\0", tenant, "" if self.job is None else f"={self.job}", self.key)[:32]


@dataclass(frozen=True, kw_only=True)
class QuestionKind:
    """How questions of one kind are asked, answered and shown.

    Attributes
    ----------
    name
        Name of its tasks, of at most ten characters.
    noun
        Its name in messages and the documentation.
    path
        Path of its routes.
    tag
        The tag of its routes in the documentation.
    title, description, example, further_examples
        What the documentation says of POST, a body, and bodies of other kinds by name.
    request, resource, summary
        Documents: a body, an answered question with the answer as its last field, and a question in a list.
    columns
        Where fields of these are stored under other names: ``input_sha256``, ``num_steps``, ``input_name``.
    parts
        Parsers of the request's fields that name what is wrong better than its own validation does.
    read
        Makes a question of a valid request, or refuses one beyond the limits. Runs in a reader process.
    answer
        Makes the answer's JSON of the stored input, compressed by zlib, and the options; the third argument
        is told how many steps are done. Runs in a worker process.
    samples
        Inputs and options that, answered once, have compiled all that an answer may need.
    csv
        Makes CSV of a stored answer.
    about_profile
        Whether its input is a profile, which is stored once for all that is asked about it.
    simulates
        Whether its steps are simulations, which tenants have a limit of.
    long
        Whether answers take so long that they have processes of their own and come after what is short.
    by_job
        Whether a job's newest answer can be asked for; its list and further routes are then its own.
    work
        What to make the answer is called in messages, traces and metrics.
    done_event
        The log's event when one is answered.
    """

    name: str
    noun: str
    path: str
    tag: str
    title: str
    description: str
    example: Mapping[str, Any]
    further_examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    request: type[Document]
    resource: type[Document]
    summary: type[Document]
    columns: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    read: Callable[[Any, ReadLimits], Question]
    answer: Callable[[bytes, str, Tell], bytes]
    samples: tuple[tuple[Mapping[str, Any], str], ...]
    csv: Callable[[bytes], bytes] | None = None
    about_profile: bool = False
    simulates: bool = True
    long: bool = True
    by_job: bool = False
    work: str = ""
    done_event: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", self.work or self.noun)
        object.__setattr__(self, "done_event", self.done_event or f"{self.name}-answered")

    @property
    def purpose(self) -> str:
        """What the work is called in messages."""
        return f"the {self.work}"

    @property
    def label(self) -> str:
        """A name for programs, such as those who read metrics."""
        return self.work.replace(" ", "-").replace("-", "_")

    @cached_property
    def content(self) -> str:
        """The field of the resource that holds the answer."""
        return list(self.resource.model_fields)[-1]

    @cached_property
    def head(self) -> tuple[tuple[str, str], ...]:
        """The other fields of the resource, and where each is stored."""
        return tuple(self.stored_fields(self.resource)[:-1])

    @cached_property
    def input_name(self) -> str:
        """What its input is: the profile, the steps, the graph. A request's field has this name."""
        (name,) = (field for field, stored in self.head if stored == "input_sha256")
        return name.removesuffix("_sha256")

    def stored_fields(self, document: type[Document]) -> list[tuple[str, str]]:
        """Return the fields of a document, and where each is stored."""
        return [(name, self.columns.get(name, name)) for name in document.model_fields]

    @cached_property
    def page(self) -> Callable[..., Document]:
        """The class of pages of a list of such questions."""
        return create_model(
            self.summary.__name__.replace("Summary", "Page"),
            __base__=Document,
            __doc__=f"Stored {self.noun}s, newest first; `next` is the cursor of the next page, if any.",
            items=(tuple[self.summary, ...], ...),  # type: ignore[name-defined]  # known only here
            next=(str | None, ...),
        )


class DoneCount:
    """Counts what is done, and tells it now and then."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told_at = time.monotonic()
        self.num_done = 0

    def __call__(self, num_more: int) -> None:
        """Count so many more."""
        self.num_done += num_more
        if time.monotonic() >= self._told_at + _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._tell(self.num_done)


def _hash(between: str, *parts: str) -> str:
    return hashlib.sha256(between.join(parts).encode()).hexdigest()
