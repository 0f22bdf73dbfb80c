"""The cluster document: the parameter servers of a job, and how they are reached.

A profile says what a worker computes; a cluster says where its gradients go. Neither has to lie about the
other.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pace.documents.base import Document, FrozenDict, frozen, load, parse, repeated
from pace.documents.profile import HALVES, Name, Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidCluster

# Whether servers wait for every worker before they answer a push, or answer each at once.
Consistency = Literal["sync", "async"]
Ratio = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


class TransferRatio(Document):
    """Bytes that are sent for each byte of a gradient, for example with compression or sparse gradients.

    Attributes
    ----------
    push, pull
        Bytes sent to the server, and back, for each byte of the gradient.
    """

    refused_as = InvalidCluster

    gradient: Name
    push: Ratio = 1.0
    pull: Ratio = 1.0


class Cluster(Document):
    """Parameter servers: their number, place and links, and how many bytes of gradients are sent."""

    refused_as = InvalidCluster

    schema_version: Literal[1] = 1
    name: Name
    exchange: PushPull
    ratios: tuple[TransferRatio, ...] = ()
    metadata: Annotated[dict[str, Any], AfterValidator(frozen)] = Field(default_factory=FrozenDict)

    @model_validator(mode="after")
    def _each_gradient_once(self) -> Self:
        if (twice := repeated(ratio.gradient for ratio in self.ratios)) is not None:
            raise ValueError(f'gradient "{twice}" has two ratios')
        return self

    def with_touched_rows(self, profile: Profile) -> "Cluster":
        """Return the cluster with ratios for embedding tables of which the profile has the rows touched.

        A worker pushes the rows of its step, and pulls the rows of all workers' steps. Ratios of this cluster
        are kept. Gradients in half precision are sent whole.
        """
        own = {ratio.gradient for ratio in self.ratios}
        found = [
            TransferRatio(
                gradient=gradient.name,
                push=gradient.touched.sent_bytes(gradient.size_bytes, 1) / gradient.size_bytes,
                pull=gradient.touched.sent_bytes(gradient.size_bytes, profile.workers) / gradient.size_bytes,
            )
            for gradient in profile.gradients
            if gradient.touched is not None
            and gradient.size_bytes
            and gradient.dtype not in HALVES
            and gradient.name not in own
        ]
        return self.model_copy(update={"ratios": (*self.ratios, *found)}) if found else self

    def to_json(self) -> bytes:
        """Serialize; the same cluster always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def parse_cluster(document: bytes | str) -> Cluster:
    """Read a cluster from JSON; raises InvalidCluster with one line per fault."""
    return parse(Cluster, document)


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster from a JSON file; raises InvalidCluster and OSError."""
    return load(parse_cluster, path, InvalidCluster)
