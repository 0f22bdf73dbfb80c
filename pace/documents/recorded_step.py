"""What an import writes into a profile's metadata about the step that it read, and what kind of job that was.

Anybody may write metadata: what has another form counts as not there.
"""

from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from pace.documents.base import Bytes, Document, Index
from pace.documents.profile import MAX_TOTAL_S, Profile, Seconds

_Kind = TypeVar("_Kind", bound=Document)


class StepCall(Document):
    """One recorded all-reduce; see ``pace.formats.replay.ReplayedCall``."""

    model_config = ConfigDict(extra="ignore")

    ready: Index
    size_bytes: Bytes
    lane: str
    start_s: Seconds
    end_s: Seconds


class RecordedStep(Document):
    """The recorded steps, and the replay of the most usual one.

    Attributes
    ----------
    recorded_s
        How long each recorded step took.
    predicted_s, error
        The length of the replayed step, and how far it is from the recorded one, relative to that.
    late_s
        What the replay waited for late ranks and the host.
    not_explained
        What the difference may be, where it is large.
    on_its_network
        Whether workers and cost of the profile are still those of the recorded steps.
    """

    model_config = ConfigDict(extra="ignore")

    recorded_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    predicted_s: Seconds
    error: Annotated[float, Field(ge=-1, le=MAX_TOTAL_S)]
    late_s: Seconds
    calls: tuple[StepCall, ...] = ()
    not_explained: str | None = None
    on_its_network: bool = True


class RecordedJob(Document):
    """The kind of the job, as ``pace.formats.kineto_kind`` names it, how sure that is, and what says so."""

    model_config = ConfigDict(extra="ignore")

    kind: str
    sure: str
    why: str


def recorded_step(profile: Profile) -> RecordedStep | None:
    """Return the step that a profile was made from; None if its metadata has none."""
    return _read(RecordedStep, profile.metadata.get("replay"))


def recorded_job(profile: Profile) -> RecordedJob | None:
    """Return the kind of job that a profile was made from; None if its metadata has none."""
    return _read(RecordedJob, profile.metadata.get("job"))


def _read(kind: type[_Kind], value: Any) -> _Kind | None:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None
