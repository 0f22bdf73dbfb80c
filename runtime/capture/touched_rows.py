"""Counts the rows of embedding tables that steps touch."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from pace.documents.push_pull import MOST_BATCHES, TouchedRows
from pace.solver.arrays import FloatArray, IntArray

# The numbers of rows that are kept until the end of a capture, on the model's device.
_MOST_KEPT_BYTES = 256 << 20


def sparse_tables(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of a model's embeddings with sparse gradients, by the names of their modules."""
    return {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


class TableBytesWatch:
    """Asks tables whose rows are on servers what a step sends and receives; forward passes take longer.

    Parameters
    ----------
    model
        Its modules of class ``ShardedEmbedding``, by name: their room is above this one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables: dict[str, Any] = {
            name: module
            for name, module in model.named_modules()
            if type(module).__name__ == "ShardedEmbedding"
        }
        self._steps: dict[str, list[tuple[int, int]]] = {name: [] for name in self._tables}
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Begin an iteration."""
        for name, table in self._tables.items():
            self._steps[name].append((0, 0))
            self._handles.append(table.register_forward_pre_hook(self._hook(name), with_kwargs=True))

    def end(self) -> None:
        """End an iteration, or stop during one; idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, name: str) -> Any:
        def entered(table: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            sent, received = table.step_bytes(args[0] if args else named["input"])
            before = self._steps[name][-1]
            self._steps[name][-1] = before[0] + sent, before[1] + received

        return entered

    def found(self) -> dict[str, dict[str, float]]:
        """Return the mean bytes of a step and the standard deviation of what it sends, by table."""
        return {
            name: {
                "sent_bytes": float(np.mean([sent for sent, _ in steps])),
                "received_bytes": float(np.mean([received for _, received in steps])),
                "sent_std_bytes": float(np.std([sent for sent, _ in steps])),
            }
            for name, steps in self._steps.items()
            if steps
        }


class TouchedRowsWatch:
    """Keeps the numbers of the rows that gradients of embedding tables have.

    Only sparse gradients are counted: servers send others whole.

    Parameters
    ----------
    tables
        Weights of embeddings with sparse gradients, by their names.
    """

    def __init__(self, tables: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._tables = dict(tables)
        self._batches: dict[str, list[list[torch.Tensor]]] = {name: [] for name in self._tables}
        self._others: set[str] = set()
        self._handles: list[Any] = []
        self._kept_bytes = 0

    def begin(self) -> None:
        """Begin an iteration."""
        if self._kept_bytes > _MOST_KEPT_BYTES:
            return
        for name, table in self._tables.items():
            self._batches[name].append([])
            handle = table.register_hook(self._hook(name))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._handles.append(handle)

    def end(self) -> None:
        """End an iteration, or stop during one; idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, name: str) -> Any:
        def arrived(gradient: torch.Tensor) -> None:
            if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
                self._others.add(name)
                return
            rows = gradient._indices()[0].clone()  # it may be a view of the batch, which loops fill anew
            self._batches[name][-1].append(rows)
            self._kept_bytes += rows.numel() * rows.element_size()

        return arrived

    def found(self) -> dict[str, TouchedRows]:
        """Return the rows touched of the tables whose gradients were always sparse, by name."""
        touched = {}
        for name, batches in self._batches.items():
            if name in self._others or not any(batches):
                continue
            rows = [
                torch.unique(torch.cat(batch)).cpu().numpy() if batch else np.zeros(0, dtype=np.int64)
                for batch in batches
            ]
            total = self._tables[name].shape[0]
            touched[name] = TouchedRows(
                rows=total,
                distinct=tuple(np.minimum(mean_unions(rows), total).tolist()),
                std=float(np.std([len(each) for each in rows])),
            )
        return touched


def mean_unions(batches: Sequence[IntArray], weights: Sequence[FloatArray] | None = None) -> FloatArray:
    """Return the mean weight of what one batch contains, what two batches contain together, and so on.

    The mean is over all choices of so many of the batches. If these are drawn independently, it is unbiased
    for as many other batches, such as those of several workers (rarefaction: Hurlbert, Ecology 52, 1971).

    Parameters
    ----------
    batches
        For each batch, distinct numbers.
    weights
        The weights of these numbers; a number has the same weight in all batches (default: 1).

    Returns
    -------
    array of shape (min(num_batches, MOST_BATCHES),)
    """
    count = len(batches)
    _, first, times = np.unique(np.concatenate(batches), return_index=True, return_counts=True)
    weight = np.ones(len(first)) if weights is None else np.concatenate(weights)[first]
    of_times = np.bincount(times, weights=weight, minlength=count + 1)
    # The chance that a number in so many batches is in none of n: C(count - times, n) / C(count, n).
    absent = np.ones(count + 1)
    found = []
    for chosen in range(min(count, MOST_BATCHES)):
        absent *= np.maximum(count - np.arange(count + 1) - chosen, 0) / (count - chosen)
        found.append(float(of_times @ (1 - absent)))
    return np.maximum.accumulate(found)
