"""``nn.EmbeddingBag`` without a weight: rows come from servers before the forward pass."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import (
    is_number,
    refusal,
    require_bool,
    require_instance,
    require_one_of,
    require_text,
    require_whole,
)
from pace.solver.arrays import IntArray
from pace_servers.embedding.embedding_tables import EmbeddingTables, Lookup, UsedRows
from pace_servers.runtime.tables.initial_rows import Initialization, RowArray, initial_rows
from pace_servers.runtime.tables.row_optimizers import RowOptimizer
from pace_servers.runtime.tables.row_table import KeptRows, TableSpec

Pooling = Literal["sum", "mean", "max"]


class _Ahead(NamedTuple):
    """Rows that were asked for ahead.

    Attributes
    ----------
    input
        A copy of the batch.
    places
        Where each of its keys is among the distinct ones.
    """

    input: torch.Tensor
    places: torch.Tensor
    lookup: Lookup


class ShardedEmbedding(nn.Module):
    """Takes the place of ``nn.EmbeddingBag``, with its rows on the servers of `tables`.

    It has no parameters: wrappers of data parallelism and optimizers do not see it, and servers update its
    rows. All ranks make the same modules in the same order.

    Parameters
    ----------
    num_embeddings, embedding_dim, mode, include_last_offset, padding_idx
        As for ``nn.EmbeddingBag``.
    optimizer
        What updates rows: ``RowSGD``, ``RowAdagrad``, ``RowWiseAdagrad`` or ``LazyAdam``.
    name
        Of the table, in checkpoints; ``table0``, ``table1`` and so on unless given.
    initialization, scale, seed
        "normal" with a standard deviation of `scale`, as ``nn.EmbeddingBag`` has it, "uniform" between
        -`scale` and `scale`, or "zeros". A row's first values follow from its key.
    kept
        Which rows servers store.

    Raises
    ------
    InvalidOptions
        If an argument is not valid.
    InvalidUse
        If a server refuses the table; the message says why.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        tables: EmbeddingTables,
        optimizer: RowOptimizer,
        mode: Pooling = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        name: str | None = None,
        initialization: Initialization = "normal",
        scale: float = 1.0,
        seed: int = 0,
        kept: KeptRows | None = None,
    ) -> None:
        super().__init__()
        require_whole("num_embeddings", num_embeddings, least=1)
        require_whole("embedding_dim", embedding_dim, least=1)
        require_instance("tables", tables, EmbeddingTables, "EmbeddingTables(...)")
        require_instance("optimizer", optimizer, RowOptimizer, "RowSGD(lr=...) or another one of this module")
        require_one_of("mode", mode, ("sum", "mean", "max"))
        require_bool("include_last_offset", include_last_offset)
        require_one_of("initialization", initialization, ("normal", "uniform", "zeros"))
        require_whole("seed", seed, least=0)
        if not is_number(scale) or not 0 <= scale < math.inf:
            raise refusal("scale", scale, "a finite number of at least 0")
        if name is not None:
            require_text("name", name)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InvalidOptions(f"padding_idx is {padding_idx}, but there are {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx % num_embeddings if padding_idx is not None else None
        self._tables = tables
        self._used = UsedRows()
        self._ahead: _Ahead | None = None
        self.spec = TableSpec(
            name=name or f"table{tables.num_tables}",
            num_rows=num_embeddings,
            width=embedding_dim,
            optimizer=optimizer,
            initialization=initialization,
            scale=float(scale),
            seed=seed,
            kept=kept or KeptRows(),
            staleness=tables.staleness,
            average=tables.average,
            restore=tables.restore,
        )
        self._number = tables.open(self.spec, self._used)

    def initial_rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the values that rows have before their first update; computed here."""
        spec = self.spec
        rows = initial_rows(
            keys.cpu().numpy(),
            spec.width,
            kind=spec.initialization,
            scale=spec.scale,
            seed=spec.seed,
        )
        return torch.from_numpy(rows)

    def look_up(self, keys: torch.Tensor) -> torch.Tensor:
        """Return rows as they are on the servers after the steps so far, without a gradient."""
        distinct, places = self._distinct(keys)
        rows = self._tables.rows(self._number, self._tables.ask(self._number, distinct, self._tables.clock))
        return torch.from_numpy(rows)[places.cpu()]

    def step_bytes(self, input: torch.Tensor) -> tuple[int, int]:  # noqa: A002  # as nn.EmbeddingBag calls it
        """Return how many bytes a step with this batch will send to servers, and receive from them."""
        return self._tables.step_bytes(self._number, self._distinct(input)[0])

    def prefetch(self, input: torch.Tensor) -> None:  # noqa: A002  # as nn.EmbeddingBag calls it
        """Ask for the rows of the next forward pass, or of more than it uses.

        After a forward pass with gradients, these are the rows after the coming ``step()``. If another
        number of steps comes first, the rows are asked for again.
        """
        distinct, places = self._distinct(input)
        coming = self._tables.clock + self._used.forwarded
        self._ahead = _Ahead(input.detach().clone(), places, self._tables.ask(self._number, distinct, coming))

    def _distinct(self, keys: torch.Tensor) -> tuple[IntArray, torch.Tensor]:
        """Return the sorted distinct keys, and where each of `keys` is among them."""
        distinct, places = torch.unique(keys, return_inverse=True)
        found: IntArray = distinct.cpu().numpy().astype(np.int64, copy=False)
        if len(found) and not 0 <= found[0] <= found[-1] < self.num_embeddings:
            wrong = found[0] if found[0] < 0 else found[-1]
            raise IndexError(f'table "{self.spec.name}": index {wrong} of {self.num_embeddings} rows')
        return found, places

    def _rows(self, keys: IntArray, ahead: Lookup | None) -> RowArray:
        if ahead is not None and ahead.clock == self._tables.clock:
            if ahead.keys is keys:
                return self._tables.rows(self._number, ahead)
            if len(ahead.keys):
                places = np.minimum(np.searchsorted(ahead.keys, keys), len(ahead.keys) - 1)
                if (ahead.keys[places] == keys).all():
                    rows = self._tables.rows(self._number, ahead)
                    return rows if len(ahead.keys) == len(keys) else rows[places]
        return self._tables.rows(self._number, self._tables.ask(self._number, keys, self._tables.clock))

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002  # as nn.EmbeddingBag calls it
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Look up and pool; see ``nn.EmbeddingBag``.

        Raises
        ------
        CommunicationFailed
            When a server or a rank is gone.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and _is_same(ahead.input, input):
            keys, places = ahead.lookup.keys, ahead.places
        else:
            keys, places = self._distinct(input)
        rows = torch.from_numpy(self._rows(keys, ahead and ahead.lookup)).to(input.device)
        if not len(keys):
            rows = rows.new_zeros(1, self.embedding_dim)
        if torch.is_grad_enabled():
            self._used.expect(keys, rows)
        padding = None
        if self.padding_idx is not None:
            place = int(np.searchsorted(keys, self.padding_idx))
            if place < len(keys) and keys[place] == self.padding_idx:
                padding = place
        return functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        """Return what ``print`` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, {self.spec.optimizer}"


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two batches have the same keys in the same places."""
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)
