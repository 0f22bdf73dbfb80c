"""The augmented graph of one window's ops, the longest paths through it, and the timing that they give.

Works on indices and arrays; the profile document that it is built from is in ``pace.documents.profile``.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray


# eq=False: comparing arrays gives arrays, and profiles, which cache their graph, must be comparable.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Compute ops and the order they keep: dependencies plus the order of each stream.

    Attributes
    ----------
    durations_s : array of shape (num_ops,)
        Duration of every op in seconds.
    predecessors : tuple of tuples of int
        For every op, the ops that end before it starts.
    order : tuple of int
        A topological order of the ops.
    """

    durations_s: FloatArray
    predecessors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    def end_times(self) -> FloatArray:
        """Longest path to the end of every op, in seconds; shape (num_ops,). O(ops + edges)."""
        durations = self.durations_s.tolist()
        end = [0.0] * len(durations)
        for op in self.order:
            start = 0.0
            for previous in self.predecessors[op]:
                if end[previous] > start:
                    start = end[previous]
            end[op] = start + durations[op]
        return np.array(end, dtype=np.float64)

    def tails(self) -> FloatArray:
        """Longest path from the start of every op to the window's end, in seconds. O(ops + edges)."""
        tail: list[float] = self.durations_s.tolist()
        after = [0.0] * len(tail)
        for op in reversed(self.order):
            tail[op] += after[op]
            for previous in self.predecessors[op]:
                if tail[op] > after[previous]:
                    after[previous] = tail[op]
        return np.array(tail, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """What the network may use: when each gradient is ready and how much compute follows it.

    Attributes
    ----------
    ready_s, tail_s : arrays of shape (num_gradients,)
        The r and q of docs/solver.md in seconds, in the profile's order of gradients.
    compute_s : float
        The window's length without any all-reduce, in seconds (C0).
    """

    ready_s: FloatArray
    tail_s: FloatArray
    compute_s: float

    @property
    def backward_s(self) -> float:
        """Until when compute runs in any case, in seconds; at most when ops end that wait for no gradient.

        At the last ready time an op has just ended. The longest path is `compute_s`, of which at most the
        longest tail waits for gradients, so something runs until the difference of the two.
        """
        longest_s = float(self.tail_s.max(initial=0.0))
        return max(float(self.ready_s.max(initial=0.0)), self.compute_s - longest_s)


class CyclicGraph(ValueError):
    """The ops wait for one another in a circle; ``cycle`` holds their indices in order."""

    def __init__(self, cycle: Sequence[int]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(f"cycle through ops {self.cycle}")


def build_graph(
    durations_s: Sequence[float], dependencies: Sequence[Sequence[int]], streams: Sequence[str | None]
) -> Graph:
    """Add the order of each stream to the dependencies and sort the ops topologically.

    Ops that name the same stream run one after another in list order; an op without a stream
    waits for its dependencies only (the PACE paper's eq. 5).

    Raises
    ------
    CyclicGraph
        If the augmented graph has a cycle; carries one.
    """
    last_on_stream: dict[str, int] = {}
    predecessors: list[tuple[int, ...]] = []
    in_order = True
    for op, (before, stream) in enumerate(zip(dependencies, streams, strict=True)):
        edges = tuple(before) if len(before) < 2 else tuple(dict.fromkeys(before))
        if edges and (edges[0] if len(edges) == 1 else max(edges)) >= op:
            in_order = False
        if stream is not None:
            last = last_on_stream.get(stream)
            if last is not None and last not in edges:
                edges = (*edges, last)
            last_on_stream[stream] = op
        predecessors.append(edges)
    return Graph(
        durations_s=np.asarray(durations_s, dtype=np.float64),
        predecessors=tuple(predecessors),
        # As profiles usually list them, there is nothing to sort.
        order=tuple(range(len(predecessors))) if in_order else _topological_order(predecessors),
    )


def _topological_order(predecessors: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    successors: list[list[int]] = [[] for _ in predecessors]
    missing = [len(before) for before in predecessors]
    for op, before in enumerate(predecessors):
        for previous in before:
            successors[previous].append(op)
    free = deque(op for op, count in enumerate(missing) if count == 0)
    order = []
    while free:
        op = free.popleft()
        order.append(op)
        for after in successors[op]:
            missing[after] -= 1
            if missing[after] == 0:
                free.append(after)
    if len(order) < len(predecessors):
        raise CyclicGraph(_find_cycle(predecessors))
    return tuple(order)


def _find_cycle(predecessors: Sequence[tuple[int, ...]]) -> list[int]:
    import networkx  # only a refusal needs it, and it is slow to import

    edges = ((previous, op) for op, before in enumerate(predecessors) for previous in before)
    return [previous for previous, _ in networkx.find_cycle(networkx.DiGraph(edges))]


def path_from_marked(graph: Graph, marked: Sequence[int], targets: Sequence[int]) -> list[int] | None:
    """Return a path from a marked op to the first of `targets` that one leads to, or None.

    A marked target is a path of one op. O(ops + edges).
    """
    if not marked or not targets:
        return None
    among = set(marked)
    first = next(position for position, op in enumerate(graph.order) if op in among)
    if set(targets).isdisjoint(graph.order[first:]):
        return None  # as in most profiles: all gradients are there before the first op waits for one
    origin = [-1] * len(graph.order)
    reached = [False] * len(graph.order)
    for op in marked:
        reached[op] = True
    for op in graph.order:
        if reached[op]:
            continue
        for previous in graph.predecessors[op]:
            if reached[previous]:
                reached[op] = True
                origin[op] = previous
                break
    for target in targets:
        if reached[target]:
            path = [target]
            while origin[path[-1]] >= 0:
                path.append(origin[path[-1]])
            return path[::-1]
    return None
