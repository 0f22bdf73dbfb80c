"""The model: who waits for it or computes from it, its snapshots, and its replica."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Count, Text


class ModelCall(Document):
    """A worker asks for a model of at least this version; the answer has its number."""

    kind: Literal["get"] = "get"
    number: Count
    at_least: Count = 0
    training: bool = True


class ModelWanted(Document):
    """Workers on the host wait for a model of at least this version: to train from it, or only to read it."""

    kind: Literal["want"] = "want"
    at_least: Count = 0
    training: Count = 1
    reading: Count = 0


class ComputingNotice(Document):
    """Versions of the models from which workers of the host compute; `delivered` is the key of the newest."""

    kind: Literal["computing"] = "computing"
    versions: tuple[Count, ...]
    delivered: str = ""


class SnapshotOrder(Document):
    """Store the model as it is now as `key`; `whole` adds what a replica needs."""

    kind: Literal["take-snapshot"] = "take-snapshot"
    key: Text
    whole: bool = False


class SnapshotNotice(Document):
    """A model is in the host's store, to be sent."""

    kind: Literal["snapshot"] = "snapshot"
    key: Text
    version: Count
    size_bytes: Count


class DeliveryOrder(Document):
    """Give what is stored as `key` to the workers of the host who wait for it.

    Attributes
    ----------
    round
        Number of the reduction; None for a model.
    most
        How many workers may begin to train from it; None for all.
    shards
        Number of parts of the model of which `key` is one. The last one to arrive delivers it.
    """

    kind: Literal["deliver"] = "deliver"
    key: Text
    round: Text | None = None
    version: Count = 0
    most: Count | None = None
    shards: Annotated[int, Field(ge=1, le=1024)] = 1


class AdoptionOrder(Document):
    """Replace a replica's model by the snapshot stored as `key`."""

    kind: Literal["adopt"] = "adopt"
    key: Text


class PromotionOrder(Document):
    """The replica is the server from now on."""

    kind: Literal["promote"] = "promote"


ModelMessage = (
    ModelCall
    | ModelWanted
    | ComputingNotice
    | SnapshotOrder
    | SnapshotNotice
    | DeliveryOrder
    | AdoptionOrder
    | PromotionOrder
)
