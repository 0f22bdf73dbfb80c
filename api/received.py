"""What reader processes make of bodies, as plain values."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

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
    """

    sha256: str
    name: str
    fingerprint: str
    num_ops: int
    num_gradients: int
    size_bytes: int
    document: bytes


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
    """

    kind: ClassVar[TaskKindName] = "schedule"
    num_steps: ClassVar[int | None] = None  # a solve cannot tell how far it is

    job: str | None
    profile_sha256: str
    profile: ReceivedProfile | None
    options: str
    asked_by: str | None = None

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
    document
        The steps' JSON, compressed by zlib, as it is stored.
    options
        The options' canonical JSON.
    """

    kind: ClassVar[TaskKindName] = "prediction"

    steps_sha256: str
    name: str
    document: bytes
    options: str
    num_points: int

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
    document
        The scenario's JSON, compressed by zlib, as it is stored.
    options
        The policies' canonical JSON.
    """

    kind: ClassVar[TaskKindName] = "fabric-run"

    scenario_sha256: str
    name: str
    document: bytes
    options: str
    num_policies: int

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


def document_bytes(received: AnyReceivedTask) -> int:
    """Return how long the document is that a request brings along, as it is stored."""
    match received:
        case ReceivedRequest() | ReceivedWhatIf():
            return 0 if received.profile is None else len(received.profile.document)
    return len(received.document)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
