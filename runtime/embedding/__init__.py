"""Embedding tables whose rows live on parameter servers: no worker holds a table whole."""

from pace.runtime.embedding.embedding_tables import EmbeddingTables
from pace.runtime.embedding.sharded_embedding import ShardedEmbedding
from pace.runtime.servers.tables.row_optimizers import LazyAdam, RowAdagrad, RowSGD, RowWiseAdagrad
from pace.runtime.servers.tables.row_table import KeptRows

__all__ = [
    "EmbeddingTables",
    "KeptRows",
    "LazyAdam",
    "RowAdagrad",
    "RowSGD",
    "RowWiseAdagrad",
    "ShardedEmbedding",
]
