"""What a sharded schedule says beside its transfers: how gradients lie in shards, when a norm is known."""

from typing import Annotated

from pydantic import Field

from pace.documents.base import Document, Index
from pace.documents.profile import ELEMENT_BYTES, DType, Name, Seconds, UpdateRule


class ShardGroup(Document):
    """Gradients that share a reduce-scatter and an all-gather: a matrix with a row for each worker.

    Attributes
    ----------
    num_columns
        Number of elements in a row. The gradients follow one another, and are padded at the end to a multiple
        of the number of workers.
    """

    tensors: Annotated[tuple[Name, ...], Field(min_length=1)]
    dtype: DType
    num_columns: Index


class NormExchange(Document):
    """When ranks exchange the norm, after the last reduce-scatter; every update waits for it."""

    start_s: Seconds
    end_s: Seconds


class Sharding(Document):
    """How gradients lie in shards.

    Attributes
    ----------
    workers
        Number of rows in the matrix of a shard.
    update
        What an update waits for.
    shards
        Shards of which the groups' buffers consist; shards without columns are in no group.
    norm
        The norm that updates wait for; None if they wait for their own gradients only.
    """

    workers: Annotated[int, Field(ge=1)]
    update: UpdateRule
    shards: tuple[ShardGroup, ...]
    norm: NormExchange | None = None

    def column_bytes(self, dtype: DType) -> int:
        """Return the bytes of one column of a matrix: an element for every worker."""
        return self.workers * ELEMENT_BYTES[dtype]
