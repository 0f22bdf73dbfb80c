"""What stays in memory when a node runs, because ops run behind it that need it."""

import math
from collections.abc import Set

from pace.documents.graph.collective_graph import CollectiveGraph

DEEPEST = 200


class MemoryBehind:
    """Memory of a graph when one node runs, in every plan."""

    def __init__(self, graph: CollectiveGraph, node_name: str) -> None:
        self._graph, self._needed = graph, {node_name}
        for node in reversed(graph.nodes):
            if node.name in self._needed:
                self._needed.update(node.deps)
        owner: dict[str, str] = {}
        size: dict[str, int] = {}
        behind = {node_name}
        used = {node_name}
        returned: set[str] = set()
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
                returned.add(owner[node.name])
        used.update(returned)
        always = {name for name in used & self._needed if size[name]}
        self._left = {name: 0 if name in always or name in returned else size[name] for name in size}
        self._spent: set[str] = set()
        self.in_use_bytes = graph.resident_bytes + sum(size[name] for name in always)
        """Bytes in use in every plan: allocated before the node and read by it or behind it, or returned.

        What is returned and made behind the node counts as what it is made from.
        """
        for name, bytes_ in size.items():
            if name in returned and name not in always and bytes_:
                self.in_use_bytes += self._flow(name, bytes_, 0)

    def held_bytes(self, price: float, behind: Set[str]) -> dict[str, int]:
        """Return for each op of some that run behind the node how many bytes it keeps in use.

        They are a flow. If all of these ops run behind the node, what they keep is different memory, so it
        adds up. Each op keeps what is worth its time at a price in seconds per byte, or less.
        """
        before = self._left.copy(), self._spent.copy()
        held = {
            node.name: self._flow(node.name, math.ceil(node.duration_s / price), 0)
            for node in self._graph.nodes
            if node.name in behind and node.collective is None and node.duration_s > 0
        }
        self._left, self._spent = before
        return held

    def _flow(self, name: str, wanted: int, depth: int) -> int:
        """Take bytes of what a node reads, or of what that is made from; return how many there were."""
        found = 0
        for storage in self._reads[name]:
            part = min(wanted - found, self._left[storage])
            if part and storage not in self._needed:
                if storage in self._spent or depth == DEEPEST:
                    continue
                part = self._flow(storage, part, depth + 1)
            self._left[storage] -= part
            found += part
            if found == wanted:
                return found
        self._spent.add(name)
        return found
