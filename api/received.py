"""What reader processes make of bodies, as plain values."""

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar, cast

from pace.client.documents import TaskKindName
from pace.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedProfile:
    """A valid profile.

    Attributes
    ----------
    size_bytes
        Length of its JSON.
    document
        Its JSON, compressed by zlib, as it is stored.
    object_key, object_bytes
        Where the document is and how long, if it is in object storage; then `document` is empty.
    """

    sha256: str
    name: str
    fingerprint: str
    num_ops: int
    num_gradients: int
    size_bytes: int
    document: bytes
    object_key: str | None = None
    object_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedImport:
    """A valid profile made from another tool's file.

    Attributes
    ----------
    found
        JSON of what the importer found, as ``ImportResource`` answers it.
    """

    profile: ReceivedProfile
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A valid request for a schedule.

    Attributes
    ----------
    profile
        The profile, or None if the request only names one that is stored.
    options
        The options' canonical JSON.
    asked_by
        The id of the API key, or whom the issuer's token names; equal requests of two are one.
    is_repeated
        Whether this service process has read an equal body before, and not long ago.
    """

    kind: ClassVar[TaskKindName] = "schedule"
    num_steps: ClassVar[int | None] = None  # a solve cannot tell how far it is

    job: str | None
    profile_sha256: str
    profile: ReceivedProfile | None
    options: str
    asked_by: str | None = None
    is_repeated: bool = False

    @property
    def input_sha256(self) -> str:
        """What the task works on."""
        return self.profile_sha256

    @property
    def key(self) -> str:
        """SHA-256 over profile, options and solver version: equal keys have equal schedules."""
        return _hash(__version__, self.profile_sha256, self.options)

    @property
    def identity(self) -> tuple[str | None, ...]:
        """Equal for requests that may be accepted together."""
        return (self.kind, self.job, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWhatIf:
    """A valid request for a what-if; `options` is the canonical JSON of all but the profile."""

    kind: ClassVar[TaskKindName] = "what-if"

    profile_sha256: str
    profile: ReceivedProfile | None
    options: str
    num_cells: int

    @property
    def input_sha256(self) -> str:
        """What the task works on."""
        return self.profile_sha256

    @property
    def key(self) -> str:
        """SHA-256 over profile, question and version: equal keys have equal answers."""
        return _hash("what-if", __version__, self.profile_sha256, self.options)

    @property
    def num_steps(self) -> int | None:
        """Progress is counted in cells."""
        return self.num_cells

    @property
    def identity(self) -> tuple[str | None, ...]:
        """Equal for requests that may be accepted together."""
        return (self.kind, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPrediction:
    """A valid request for a prediction.

    Attributes
    ----------
    document, object_key, object_bytes
        The steps' JSON, compressed by zlib, or where it is, as for profiles.
    options
        The options' canonical JSON.
    """

    kind: ClassVar[TaskKindName] = "prediction"

    steps_sha256: str
    name: str
    document: bytes
    options: str
    num_points: int
    object_key: str | None = None
    object_bytes: int | None = None

    @property
    def input_sha256(self) -> str:
        """What the task works on."""
        return self.steps_sha256

    @property
    def key(self) -> str:
        """SHA-256 over steps, options and version: equal keys have equal predictions."""
        return _hash("prediction", __version__, self.steps_sha256, self.options)

    @property
    def num_steps(self) -> int | None:
        """Progress is counted in points."""
        return self.num_points

    @property
    def identity(self) -> tuple[str | None, ...]:
        """Equal for requests that may be accepted together."""
        return (self.kind, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFabricRun:
    """A valid request for simulated runs.

    Attributes
    ----------
    document, object_key, object_bytes
        The scenario's JSON, compressed by zlib, or where it is, as for profiles.
    options
        The policies' canonical JSON.
    """

    kind: ClassVar[TaskKindName] = "fabric-run"

    scenario_sha256: str
    name: str
    document: bytes
    options: str
    num_policies: int
    object_key: str | None = None
    object_bytes: int | None = None

    @property
    def input_sha256(self) -> str:
        """What the task works on."""
        return self.scenario_sha256

    @property
    def key(self) -> str:
        """SHA-256 over scenario, policies and version: equal keys have equal runs."""
        return _hash("fabric-run", __version__, self.scenario_sha256, self.options)

    @property
    def num_steps(self) -> int | None:
        """Progress is counted in policies."""
        return self.num_policies

    @property
    def identity(self) -> tuple[str | None, ...]:
        """Equal for requests that may be accepted together."""
        return (self.kind, self.key)


AnyReceivedTask = ReceivedRequest | ReceivedWhatIf | ReceivedPrediction | ReceivedFabricRun


def brought_document(
    received: AnyReceivedTask | ReceivedProfile,
) -> "ReceivedProfile | ReceivedPrediction | ReceivedFabricRun | None":
    """Return what holds the document that a request brings along, or None if it brings none."""
    match received:
        case ReceivedRequest() | ReceivedWhatIf():
            return received.profile
    return received


def document_bytes(received: AnyReceivedTask | ReceivedProfile) -> int:
    """Return how long the document is that a request brings along, as it is stored."""
    brought = brought_document(received)
    if brought is None:
        return 0
    return len(brought.document) if brought.object_bytes is None else brought.object_bytes


R = TypeVar("R", bound=AnyReceivedTask | ReceivedProfile)


def moved(received: R, object_key: str) -> R:
    """Return a request whose document is in object storage."""
    brought = brought_document(received)
    assert brought is not None
    elsewhere = replace(brought, document=b"", object_key=object_key, object_bytes=len(brought.document))
    match received:
        case ReceivedRequest() | ReceivedWhatIf():
            assert isinstance(elsewhere, ReceivedProfile)
            return cast("R", replace(received, profile=elsewhere))
    return cast("R", elsewhere)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
