"""A daemon introduces its host to the scheduler; what the scheduler does, on request."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Amount, Count, HeldUpdate, Momentum, Text


class HostRegistration(Document):
    """A daemon introduces its host: where others reach it, which model it holds, which updates wait there.

    Attributes
    ----------
    digest
        SHA-256 of the model and its history: equal models need no snapshot.
    recent
        The last commits of a host with a model: update ids and the version afterwards.
    shard, shards
        Which part of a model a server holds, and into how many it is split.
    """

    kind: Literal["register"] = "register"
    host: Text
    address: Text
    port: Annotated[int, Field(gt=0, lt=1 << 16)]
    part: Literal["worker", "server", "replica"] = "worker"
    version: Count = 0
    model_bytes: Count = 0
    history_norm: Amount = 0.0
    digest: str = ""
    updates: tuple[HeldUpdate, ...] = ()
    recent: tuple[tuple[Text, Count], ...] = ()
    shard: Count = 0
    shards: Annotated[int, Field(ge=1, le=1024)] = 1


class WelcomeOrder(Document):
    """Answer to a daemon that registered; `progress_s` is the interval of reports of what has arrived."""

    kind: Literal["welcome"] = "welcome"
    progress_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    momentum: Momentum = 0.0
    network_state: str
    merge: Literal["sum", "weighted-mean"] = "sum"


class RefusalOrder(Document):
    """Why a daemon or a round cannot go on.

    Attributes
    ----------
    member
        The only member of the round for which it cannot; None for all on the host.
    missed
        Whether the member is no longer in its group, and may join it again.
    """

    kind: Literal["refused"] = "refused"
    reason: str
    round: Text | None = None
    member: Text | None = None
    missed: bool = False


class StatusCall(Document):
    """Somebody asks a scheduler what it does."""

    kind: Literal["ask-status"] = "ask-status"


class StatusAnswer(Document):
    """What a scheduler does, as JSON."""

    kind: Literal["status"] = "status"
    document: str


HostMessage = HostRegistration | WelcomeOrder | RefusalOrder | StatusCall | StatusAnswer
