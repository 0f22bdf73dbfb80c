"""Embedding tables whose rows live on parameter servers: no worker holds a table whole."""

from pace_servers.embedding.embedding_tables import EmbeddingTables
from pace_servers.embedding.sharded_embedding import ShardedEmbedding
from pace_servers.runtime.tables.row_optimizers import LazyAdam, RowAdagrad, RowSGD, RowWiseAdagrad
from pace_servers.runtime.tables.row_table import KeptRows

__all__ = [
    "EmbeddingTables",
    "KeptRows",
    "LazyAdam",
    "RowAdagrad",
    "RowSGD",
    "RowWiseAdagrad",
    "ShardedEmbedding",
]
