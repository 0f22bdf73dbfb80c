"""Reads an FX graph, as Inductor has it after autograd, as a graph document.

Nodes keep their names. Inputs are no nodes of the document, but memory in use. What is not in the arguments
of a node becomes a dependency here: the order of writes and reads of one tensor, of random numbers and of
side effects.
"""

import hashlib
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._C._distributed_c10d import _resolve_process_group
from torch._guards import detect_fake_mode
from torch._inductor.fx_utils import get_fake_args_kwargs

from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, Communicator, GraphNode, OpCost
from pace.errors import InvalidGraph
from pace.formats.node_list import COLLECTIVES, is_view
from pace.formats.tensor_types import DTYPES

NO_COST = AffineAllReduce(latency_s=0.0, seconds_per_byte=0.0)
FUNCTIONAL = "_c10d_functional"
# Ops of these namespaces communicate.
_COMMUNICATE = frozenset({FUNCTIONAL, "c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem"})

Cost = AffineAllReduce | SampledAllReduce


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCall:
    """A kind of collective on a process group; the group's number is that of its first use in the graph."""

    group: int
    op: CollectiveOp


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOfGraph:
    """A process group whose collectives a graph has; ranks of one mesh dimension have other names for it."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FxProgram:
    """An FX graph as a document without times.

    Attributes
    ----------
    untimed
        The document. All ops take 0 s in it, and so do all collectives.
    nodes
        The FX node of each node of the document.
    groups
        Process groups in the order of their first use.
    calls
        What each communicator of the document stands for.
    lines
        For each node, what must be the same on all ranks.
    """

    untimed: CollectiveGraph
    nodes: tuple[fx.Node, ...]
    groups: tuple[GroupOfGraph, ...]
    calls: Mapping[str, GroupCall]
    lines: tuple[str, ...]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of all lines; 64 hexadecimal digits."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def is_of(self, graph: CollectiveGraph) -> bool:
        """Return whether a document is that of this graph, apart from times."""
        untimed = tuple(node.model_copy(update={"duration_s": 0.0}) for node in graph.nodes)
        return untimed == self.untimed.nodes and graph.resident_bytes == self.untimed.resident_bytes

    def timed(
        self,
        durations_s: Mapping[str, float],
        costs: Mapping[GroupCall, Cost],
        *,
        wires: tuple[str, ...],
        copy_bytes_per_s: float,
        compute_slowdown: float,
    ) -> CollectiveGraph:
        """Return the document with durations by node name, costs, and the wire of each group."""
        return CollectiveGraph(
            name=self.untimed.name,
            wires=tuple(dict.fromkeys(wires)) or ("network",),
            communicators=tuple(
                Communicator(
                    name=each.name,
                    ranks=each.ranks,
                    wire=wires[self.calls[each.name].group],
                    costs=(OpCost(op=self.calls[each.name].op, cost=costs[self.calls[each.name]]),),
                    group=each.group,
                )
                for each in self.untimed.communicators
            ),
            copy_bytes_per_s=copy_bytes_per_s,
            compute_slowdown=compute_slowdown,
            resident_bytes=self.untimed.resident_bytes,
            resident_shard_bytes=self.untimed.resident_shard_bytes,
            nodes=tuple(
                node.model_copy(update={"duration_s": durations_s.get(node.name, 0.0)})
                for node in self.untimed.nodes
            ),
        )


def complete_values(graph: fx.Graph) -> None:
    """Set ``meta["val"]`` of nodes that other passes added without it, as Inductor does after all passes."""
    known = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    mode = detect_fake_mode(known)
    for node in graph.nodes:
        if mode is not None and isinstance(node.target, torch._ops.OpOverload) and "val" not in node.meta:
            is_known, args, kwargs = get_fake_args_kwargs(node)
            if is_known:
                with mode:
                    node.meta["val"] = node.target(*args, **kwargs)


def read_fx(graph: fx.Graph, name: str) -> FxProgram:
    """Read an FX graph whose nodes have ``meta["val"]``.

    Raises
    ------
    InvalidGraph
        If it has a collective without a wait, or one that cannot be planned; the message names the node.
    """
    reader = _Reader()
    for node in graph.nodes:
        reader.read(node)
    return reader.finish(name)


def bytes_of(value: Any) -> int:
    """Return the bytes of a tensor or of the tensors of a sequence; sizes that may change count as now."""
    if isinstance(value, torch.Tensor):
        return int(now(value.numel())) * value.element_size()
    if isinstance(value, list | tuple):
        return sum(bytes_of(each) for each in value)
    return 0


def now(size: Any) -> Any:
    """Return the value that a symbolic size has while the graph is compiled; other values as they are."""
    if isinstance(size, torch.SymInt):
        if not size.node.has_hint():
            raise InvalidGraph(f"size {size} is only known while the graph runs: it cannot be planned")
        return size.node.hint
    return size


def view_source(node: fx.Node) -> fx.Node | None:
    """Return the node whose memory a node returns, or None if it returns memory of its own."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target is operator.getitem:
        return source
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if is_view(str(node.target)):
        return source
    returns = node.target._schema.returns
    return source if returns and returns[0].alias_info is not None else None


def origin(node: fx.Node) -> fx.Node:
    """Return the node that allocated the memory which a node returns."""
    while node.op == "call_function" and (source := view_source(node)) is not None:
        node = source
    return node


def is_collective(node: fx.Node) -> bool:
    """Return whether a node starts a collective that can be planned."""
    return _functional_name(node) in COLLECTIVES


def is_wait(node: fx.Node) -> bool:
    """Return whether a node waits for a collective."""
    return _functional_name(node) == "wait_tensor"


def _functional_name(node: fx.Node) -> str | None:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return node.target._opname if node.target.namespace == FUNCTIONAL else None


def group_name(node: fx.Node) -> Any:
    """Return the process group, or its name, that a collective was called with."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "group_name":
            found: Any = node.args[place] if place < len(node.args) else node.kwargs["group_name"]
            return found.meta["val"] if isinstance(found, fx.Node) else found
    raise AssertionError(node.target)


def process_group(name: Any) -> dist.ProcessGroup:
    """Return the process group of a name, as collectives of graphs call it."""
    return name if isinstance(name, dist.ProcessGroup) else _resolve_process_group(name)


@dataclass(slots=True)
class _Reader:
    nodes: list[fx.Node] = field(default_factory=list)
    documents: list[GraphNode] = field(default_factory=list)
    inputs: set[fx.Node] = field(default_factory=set)
    returned: set[fx.Node] = field(default_factory=set)
    groups: dict[str, GroupOfGraph] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    calls: dict[str, GroupCall] = field(default_factory=dict)
    waits: dict[fx.Node, fx.Node] = field(default_factory=dict)
    root: dict[fx.Node, fx.Node] = field(default_factory=dict)
    writer: dict[fx.Node, fx.Node] = field(default_factory=dict)
    readers: defaultdict[fx.Node, list[fx.Node]] = field(default_factory=lambda: defaultdict(list))
    last_effect: fx.Node | None = None
    lines: list[str] = field(default_factory=list)
    resident_bytes: int = 0
    shards: set[fx.Node] = field(default_factory=set)

    def read(self, node: fx.Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            self.inputs.add(node)
            self.root[node] = node
            self.resident_bytes += bytes_of(node.meta.get("val"))
        elif node.op == "output":
            self.returned.update(node.all_input_nodes)
        elif node.op == "call_function":
            self._read_call(node)
        else:
            raise InvalidGraph(f'node "{node.name}" is a {node.op}: expected a graph of Inductor')

    def _read_call(self, node: fx.Node) -> None:
        deps = dict.fromkeys(each for each in node.all_input_nodes if each not in self.inputs)
        source = view_source(node)
        self.root[node] = node if source is None else self.root[source]
        hidden = self._hidden_deps(node)
        call = None
        waits_for = None
        if is_collective(node):
            call = self._call(node)
        elif is_wait(node):
            sent = node.all_input_nodes[0]
            self.root[node] = sent
            if is_collective(sent):
                waits_for = sent.name
                self.waits[sent] = node
                hidden = {}
        elif self._communicates(node):
            raise InvalidGraph(
                f'node "{node.name}" is {node.target}, which cannot be planned: expected '
                f"{', '.join(sorted(COLLECTIVES))} of {FUNCTIONAL}, each with a wait"
            )
        names = tuple(dict.fromkeys(each.name for each in (*deps, *hidden)))
        is_own = source is None and call is None and waits_for is None and not is_wait(node)
        view_of = source if source in deps and call is None and waits_for is None else None
        self.nodes.append(node)
        self.documents.append(
            GraphNode(
                name=node.name,
                deps=names,
                collective=call,
                waits_for=waits_for,
                allocates_bytes=bytes_of(node.meta.get("val")) if is_own else 0,
                view_of=None if view_of is None else view_of.name,
            )
        )
        read = ", ".join(each.name for each in node.all_input_nodes)
        sent_text = "" if call is None else f", which sends {call.model_dump_json()}"
        self.lines.append(f"{node.name}: {node.target} of {read or 'nothing'}{sent_text}")

    @staticmethod
    def _communicates(node: fx.Node) -> bool:
        return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COMMUNICATE

    def _hidden_deps(self, node: fx.Node) -> dict[fx.Node, None]:
        """Return nodes that must come before a node whose output it does not read."""
        found: dict[fx.Node, None] = {}
        written = {self.root[each] for each in written_by(node)}
        for each in node.all_input_nodes:
            root = self.root[each]
            if root in written:
                continue
            if root in self.writer:
                found[self.writer[root]] = None
            self.readers[root].append(node)
        for root in written:
            if root in self.writer:
                found[self.writer[root]] = None
            for reader in self.readers[root]:
                if is_collective(reader):
                    if reader not in self.waits:
                        raise InvalidGraph(
                            f'node "{node.name}" writes what collective "{reader.name}" still reads: '
                            "it must come after the wait"
                        )
                    reader = self.waits[reader]
                found[reader] = None
            self.readers[root] = []
            self.writer[root] = node
        if has_effect(node):
            if self.last_effect is not None:
                found[self.last_effect] = None
            self.last_effect = node
        return found

    def _call(self, node: fx.Node) -> CollectiveCall:
        assert isinstance(node.target, torch._ops.OpOverload)
        op = COLLECTIVES[node.target._opname]
        number = self._group(node)
        communicator = f"group {number}"
        if op in ("reduce-scatter", "all-reduce"):
            communicator += f" {node.args[1]}"
        if op == "all-to-all" or node.meta["val"].dtype.is_complex:
            communicator += f" {node.name}"  # no function of Inductor fuses them
        name = f"{communicator} {op}"
        if name not in self.communicators:
            ranks = len(tuple(self.groups.values())[number].ranks)
            self.communicators[name] = Communicator(
                name=name,
                ranks=ranks,
                wire="network",
                costs=(OpCost(op=op, cost=NO_COST),),
                group=f"group {number}",
            )
            self.calls[name] = GroupCall(group=number, op=op)
        value = node.meta["val"]
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if op == "all-gather":
            self._read_shard(source)
        return CollectiveCall(
            op=op,
            communicator=name,
            dtype=DTYPES.get(str(value.dtype).removeprefix("torch.")),
            input_bytes=max(1, bytes_of(source.meta["val"])),
            output_bytes=bytes_of(value),
        )

    def _read_shard(self, node: fx.Node) -> None:
        """Note an input that is gathered as it is, or behind casts and views."""
        while node not in self.inputs:
            if is_collective(node) or is_wait(node) or len(node.all_input_nodes) != 1:
                return
            (node,) = node.all_input_nodes
        self.shards.add(node)

    def _group(self, node: fx.Node) -> int:
        group = process_group(group_name(node))
        name = group.group_name
        if name not in self.groups:
            self.groups[name] = GroupOfGraph(name=name, ranks=tuple(dist.get_process_group_ranks(group)))
        return list(self.groups).index(name)

    def finish(self, name: str) -> FxProgram:
        documents = tuple(
            document.model_copy(update={"returned": True}) if node in self.returned else document
            for node, document in zip(self.nodes, self.documents, strict=True)
        )
        return FxProgram(
            untimed=CollectiveGraph(
                name=name,
                wires=("network",),
                communicators=tuple(self.communicators.values()),
                copy_bytes_per_s=1.0,
                resident_bytes=self.resident_bytes,
                resident_shard_bytes=sum(bytes_of(each.meta.get("val")) for each in self.shards),
                nodes=documents,
            ),
            nodes=tuple(self.nodes),
            groups=tuple(self.groups.values()),
            calls=self.calls,
            lines=tuple(self.lines),
        )


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments of a node that it writes to."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        if "mutation" in str(node.target):
            yield from node.all_input_nodes
        return
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, fx.Node):
                yield each


def has_effect(node: fx.Node) -> bool:
    """Return whether a node must keep its place among others of its kind: random numbers, side effects."""
    if is_collective(node) or is_wait(node):
        return False
    if isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    ):
        return True
    return node.is_impure() and not any(True for _ in written_by(node))
