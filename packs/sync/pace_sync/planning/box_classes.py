"""Boxes of tensors by who holds them and who wants them: the intersections of all shards."""

import math
from collections.abc import Iterable
from itertools import product

import numpy as np

from pace.solver.arrays import BoolArray, IntArray
from pace_sync.documents.resharding import Resharding, TensorBox, WholeTensor
from pace_sync.errors import InvalidSync

MOST_CELLS = 1_000_000

# Numbers of the senders that hold a box, and of the receivers that want it.
BoxClass = tuple[tuple[int, ...], tuple[int, ...]]


def box_classes(problem: Resharding) -> dict[BoxClass, list[TensorBox]]:
    """Return all boxes that somebody wants, by the senders that hold them and the receivers that want them.

    The borders of all shards cut a tensor into a grid. Cells with the same holders and the same receivers
    are joined again.

    Raises
    ------
    InvalidSync
        If nobody holds what a receiver wants.
    """
    held = [_by_tensor(sender.shards) for sender in problem.senders]
    wanted = [_by_tensor(receiver.wants) for receiver in problem.receivers]
    found: dict[BoxClass, list[TensorBox]] = {}
    for tensor in problem.tensors:
        holders = [boxes.get(tensor.name, []) for boxes in held]
        wanters = [boxes.get(tensor.name, []) for boxes in wanted]
        if any(wanters):
            _classify(problem, tensor, holders, wanters, found)
    return found


def num_cells(problem: Resharding) -> int:
    """Return how many boxes the borders of all shards cut all tensors into."""
    boxes = _by_tensor(box for sender in problem.senders for box in sender.shards)
    for receiver in problem.receivers:
        for name, wanted in _by_tensor(receiver.wants).items():
            boxes.setdefault(name, []).extend(wanted)
    return sum(
        math.prod(len(each) - 1 for each in _borders(tensor, boxes.get(tensor.name, [])))
        for tensor in problem.tensors
    )


def _borders(tensor: WholeTensor, boxes: list[TensorBox]) -> list[IntArray]:
    """Return where boxes begin and end, by dimension."""
    return [
        np.unique(
            [0, length, *(box.begin[place] for box in boxes), *(box.end[place] for box in boxes)]
        ).astype(np.int64)
        for place, length in enumerate(tensor.shape)
    ]


def _by_tensor(boxes: Iterable[TensorBox]) -> dict[str, list[TensorBox]]:
    found: dict[str, list[TensorBox]] = {}
    for box in boxes:
        found.setdefault(box.tensor, []).append(box)
    return found


def _classify(
    problem: Resharding,
    tensor: WholeTensor,
    holders: list[list[TensorBox]],
    wanters: list[list[TensorBox]],
    found: dict[BoxClass, list[TensorBox]],
) -> None:
    borders = _borders(tensor, [box for boxes in (*holders, *wanters) for box in boxes])
    counts = tuple(len(each) - 1 for each in borders)
    if np.prod(counts, dtype=np.float64) > MOST_CELLS:
        raise InvalidSync(f'tensor "{tensor.name}": shards cut it into more than {MOST_CELLS:,} boxes')
    holds, wants = _marked(holders, borders, counts), _marked(wanters, borders, counts)
    lost = wants.any(axis=0) & ~holds.any(axis=0)
    if lost.any():
        cell = tuple(int(place) for place in np.argwhere(lost)[0])
        box = _box_of(tensor.name, borders, cell, tuple(place + 1 for place in cell))
        wanting = wants.reshape(len(wants), -1)[:, int(np.flatnonzero(lost)[0])]
        receiver = problem.receivers[int(np.argmax(wanting))].name
        raise InvalidSync(f'no sender holds {box.told()}, which receiver "{receiver}" wants')
    marks = np.concatenate([holds, wants]).reshape(len(holds) + len(wants), -1)
    kinds, labels = np.unique(marks, axis=1, return_inverse=True)
    grid = labels.reshape(counts)
    for low, high, label in _joined(grid):
        kind = kinds[:, label]
        receivers = tuple(np.flatnonzero(kind[len(holds) :]).tolist())
        if receivers:
            key = tuple(np.flatnonzero(kind[: len(holds)]).tolist()), receivers
            found.setdefault(key, []).append(_box_of(tensor.name, borders, low, high))


def _marked(hosts: list[list[TensorBox]], borders: list[IntArray], counts: tuple[int, ...]) -> BoolArray:
    marks = np.zeros((len(hosts), *counts), dtype=np.bool_)
    for host, boxes in enumerate(hosts):
        for box in boxes:
            spans = [
                slice(int(np.searchsorted(each, low)), int(np.searchsorted(each, high)))
                for each, low, high in zip(borders, box.begin, box.end, strict=True)
            ]
            marks[host, ...][tuple(spans)] = True
    return marks


def _joined(grid: IntArray) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Return boxes of cells with one label: where they begin and end, by dimension, and the label."""
    boxes = {
        cell: (tuple(place + 1 for place in cell), int(grid[cell]))
        for cell in product(*(range(n) for n in grid.shape))
    }
    for axis in range(grid.ndim):
        joined: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        last: dict[tuple[object, ...], tuple[int, ...]] = {}  # by all but this axis: the box that ends here
        for low, (high, label) in sorted(boxes.items(), key=lambda each: each[0][axis]):
            rest = (low[:axis], low[axis + 1 :], high[:axis], high[axis + 1 :], label, low[axis])
            before = last.pop(rest, None)
            first = low if before is None else before
            joined[first] = (high, label)
            last[(*rest[:-1], high[axis])] = first
        boxes = joined
    return [(low, high, label) for low, (high, label) in sorted(boxes.items())]


def _box_of(name: str, borders: list[IntArray], low: tuple[int, ...], high: tuple[int, ...]) -> TensorBox:
    begin = tuple(int(each[place]) for each, place in zip(borders, low, strict=True))
    end = tuple(int(each[place]) for each, place in zip(borders, high, strict=True))
    shape = tuple(until - since for since, until in zip(begin, end, strict=True))
    return TensorBox(tensor=name, begin=begin, shape=shape)
