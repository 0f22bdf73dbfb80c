"""What stays in memory when a collective is issued, because ops run behind it that need it."""

import math
from collections.abc import Set

from pace.documents.graph.collective_graph import CollectiveGraph

DEEPEST = 200


class MemoryBehind:
    """Memory of a graph when one collective is issued.

    Parameters
    ----------
    needed
        Names of the collective and of all nodes that it needs.
    """

    def __init__(self, graph: CollectiveGraph, collective: str, needed: Set[str]) -> None:
        self._graph, self._needed = graph, needed
        owner: dict[str, str] = {}
        size: dict[str, int] = {}
        behind = {collective}
        used = {collective}
        self._reads: dict[str, list[str]] = {}
        for node in graph.nodes:
            shared = node.waits_for or node.view_of
            owner[node.name] = owner[shared] if shared is not None else node.name
            size[node.name] = (
                node.allocates_bytes if node.collective is None else node.collective.output_bytes
            )
            self._reads[node.name] = [owner[dep] for dep in node.deps]
            if not behind.isdisjoint(node.deps):
                behind.add(node.name)
            if node.name in behind:
                used.update(self._reads[node.name])
            if node.returned:
                used.add(owner[node.name])
        always = {name for name in used & needed if size[name]}
        self.in_use_bytes = graph.resident_bytes + sum(size[name] for name in always)
        """Bytes in use in every plan: needed by the collective, and by it or behind it, or returned."""
        self._size = {name: 0 if name in always else bytes_ for name, bytes_ in size.items()}

    def held_bytes(self, price: float) -> dict[str, int]:
        """Return for each op that the collective does not need how many bytes it keeps in use.

        They are a flow. If all ops of a set run behind the collective, what they keep is different memory, so
        it adds up. Each op keeps what is worth its time at a price in seconds per byte, or less.
        """
        left = dict(self._size)
        spent: set[str] = set()

        def flow(name: str, wanted: int, depth: int) -> int:
            found = 0
            for storage in self._reads[name]:
                part = min(wanted - found, left[storage])
                if part and storage not in self._needed:
                    if storage in spent or depth == DEEPEST:
                        continue
                    part = flow(storage, part, depth + 1)
                left[storage] -= part
                found += part
                if found == wanted:
                    return found
            spent.add(name)
            return found

        return {
            node.name: flow(node.name, math.ceil(node.duration_s / price), 0)
            for node in self._graph.nodes
            if node.name not in self._needed and node.collective is None and node.duration_s > 0
        }
