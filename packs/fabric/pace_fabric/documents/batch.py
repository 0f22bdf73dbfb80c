"""The batch document: updates that wait for the server, and the bounds that their commits must keep."""

import hashlib
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document, repeated
from pace.documents.profile import Name, Seconds
from pace.simulation.knobs import Bytes, SomeBytes

Norm = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST_VERSIONS = 2**53
Version = Annotated[int, Field(ge=0, lt=MOST_VERSIONS)]


class PendingUpdate(Document):
    """An update that waits on its worker's host.

    Attributes
    ----------
    version
        Version of the model from which it was computed.
    norm
        Euclidean norm of the update, for the bound on the replica's divergence.
    ready_s
        Time at which it may leave its host, in seconds from the plan's start.
    weight
        Weight in a weighted mean, for example its number of tokens.
    kind
        Kind of update; the plan does not depend on it.
    """

    id: Name
    host: Name
    size_bytes: Bytes
    version: Version
    norm: Norm = 0.0
    ready_s: Seconds = 0.0
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    kind: Literal["gradient", "pseudo-gradient", "delta", "rollouts"] = "gradient"


class DivergenceLimit(Document):
    """Limit on the replica's lag: the norm of the difference from the server, or a number of updates."""

    kind: Literal["norm", "updates"] = "norm"
    max: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SumSize(Document):
    """Size of a sum of updates.

    Attributes
    ----------
    kind
        "dense": as large as its largest member. "sparse": as large as all members together, at most
        `at_most_bytes`.
    momentum
        "sum": one sum; with momentum it is one step instead of several, exact without. "exact": two vectors,
        which reproduce every step.
    """

    kind: Literal["dense", "sparse"] = "dense"
    at_most_bytes: SomeBytes | None = None
    momentum: Literal["sum", "exact"] = "sum"

    @model_validator(mode="after")
    def _limit_of_sparse(self) -> Self:
        if (self.kind == "sparse") != (self.at_most_bytes is not None):
            raise ValueError('at_most_bytes must be given for kind "sparse", and only then')
        return self


class UpdateBatch(Document):
    """Updates to be planned together.

    Attributes
    ----------
    version
        Version of the server's model after all commits that are planned already.
    delay_bound
        Every update's delay (the version just before its commit, minus its own) is smaller than this; null
        for no bound.
    divergence
        Limit on the replica's lag; null for no replication.
    momentum, history_norm
        Momentum of the server's update rule, and the norm of its history at the replica's model.
    punted
        Committed updates that the replica has not received yet, in commit order.
    merge
        How the server applies a commit of several updates; the plan does not depend on it.
    buffer_bytes
        Largest number of bytes that a host keeps for the replica; null for no limit.
    """

    schema_version: Literal[1] = 1
    version: Version
    delay_bound: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    divergence: DivergenceLimit | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    history_norm: Norm = 0.0
    merge: Literal["sum", "weighted-mean"] = "sum"
    sum_size: SumSize = SumSize()
    updates: tuple[PendingUpdate, ...]
    punted: tuple[PendingUpdate, ...] = ()
    buffer_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _ids_and_versions_fit(self) -> Self:
        if (twice := repeated(update.id for update in (*self.updates, *self.punted))) is not None:
            raise ValueError(f'update "{twice}" is there twice')
        if self.version + len(self.updates) >= MOST_VERSIONS:
            raise ValueError(
                f"version: each of the {len(self.updates)} updates adds 1 to it, and the sum must be below "
                f"{MOST_VERSIONS} (got {self.version})"
            )
        for update in self.updates:
            if update.version > self.version:
                raise ValueError(
                    f'update "{update.id}" is from version {update.version}, later than {self.version}'
                )
        return self

    @model_validator(mode="after")
    def _what_is_given_is_used(self) -> Self:
        if self.divergence is None:
            for name, value in (("punted", self.punted), ("buffer_bytes", self.buffer_bytes is not None)):
                if value:
                    raise ValueError(f"{name} is for a replica: give a divergence limit, or leave it out")
        if self.merge == "weighted-mean" and self.sum_size.momentum == "exact":
            raise ValueError(
                'sum_size: momentum "exact" takes a step for each update, merge "weighted-mean" one for all: '
                "choose one of them"
            )
        return self

    @property
    def sha256(self) -> str:
        """SHA-256 of the document in its canonical form."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
