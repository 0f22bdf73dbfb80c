"""TensorFlow's ``RunMetadata`` of traced steps, as JSON: one worker's steps with parameter servers.

Written where TensorFlow is, with ``google.protobuf.json_format.MessageToDict`` of what ``Session.run``
fills in when it is asked for FULL_TRACE and the partition graphs. Those hold every op and where it ran; the
step statistics hold when, and one ``RecvTensor`` row for each transfer.
"""

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx

from pace.documents.steps import StepLink, StepsDocument, StepsOp, StepTimes
from pace.errors import FormatError
from pace.formats.reading import number, open_binary, validated, warn

_LABEL = re.compile(r"(?P<edge>edge_\S+) from (?P<source>/job:\S+) to (?P<target>/job:\S+)")
_DEVICE = re.compile(r"job:(?P<job>[^/]+)(?:/replica:\d+)?/task:(?P<task>\d{1,9})")
_SENDS, _RECVS = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
# Before the key of a pull: no job has such a name.
_ASKING = "asking for "
# Pulls that a server had ready so close to one another may have been sent in any order.
_TOGETHER_US = 10_000.0
_LATER_US = 1.0  # floats of times since 1970 tell no tenths


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node of a partition graph: `edge` is the transfer that a _Send or _Recv is an end of."""

    name: str
    op: str
    job: str
    task: int
    inputs: tuple[str, ...]
    edge: str | None


@dataclass(slots=True, kw_only=True)
class _Traced:
    """One traced step: when ops and transfers started and how long they took, in microseconds."""

    nodes: dict[str, _Node]
    rows: dict[str, tuple[float, float]] = field(default_factory=dict)
    transfers: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def shape(self) -> frozenset[tuple[str, tuple[str, ...]]]:
        """The parts that must be equal in all steps."""
        return frozenset((node.name, node.inputs) for node in self.nodes.values())

    @property
    def edges(self) -> set[str]:
        """Every transfer that should have happened."""
        return {node.edge for node in self.nodes.values() if node.op in _RECVS and node.edge}


def read_tf_run_metadata(
    paths: Sequence[str | Path],
    *,
    bytes_per_s: float | None = None,
    batch: float = 1,
    name: str | None = None,
) -> StepsDocument:
    """Make a steps document from TensorFlow's traces of one worker's steps.

    Ops of a server that wait for nothing (reads of variables) are left out. Pulls that wait for nothing else
    wait for an op of the worker, which asks for them: it takes from the step's beginning until the server had
    them ready. Within milliseconds a server sends tensors in another order than the one in which they were
    ready; that order is read from when they were received.

    Parameters
    ----------
    paths
        Each file holds one RunMetadata or a list of them, gzipped or not.
    bytes_per_s
        Measured rate of the link; taken from the steps' own transfers if left out, with a warning.
    batch
        Examples in a step.

    Returns
    -------
    StepsDocument
        Its metadata says how many steps were dropped because they lacked rows or had another graph.

    Raises
    ------
    FormatError
        If a file is not what it should be, or no step is complete.
    """
    traced = [step for path in paths for step in _read(path)]
    where = paths[0] if paths else "(no file)"
    if not traced:
        raise FormatError(where, "there is no RunMetadata in it")
    usual, _ = Counter(step.shape for step in traced).most_common(1)[0]
    whole = [step for step in traced if step.shape == usual and step.edges <= step.transfers.keys()]
    whole = [step for step in whole if _has_servers_rows(step)]
    if not whole:
        raise FormatError(
            where, f"none of {len(traced)} steps is complete: rows of transfers or servers are missing"
        )
    dropped = len(traced) - len(whole)
    if dropped:
        warn(where, f"{dropped} of {len(traced)} steps were dropped: they lack rows or have another graph")
    with validated(where, "steps document"):
        ops, order = _asked(*_ops(where, whole[0]))
    rate = bytes_per_s
    if rate is None:
        rate = _busy_rate(where, whole)
        warn(where, f"no rate of the link was given; the recorded transfers have {rate:.4g} bytes/s")
    servers = 1 + max((op.server or 0 for op in ops), default=0)
    asked = {key.removeprefix(_ASKING) for key in order if key.startswith(_ASKING)}
    pulls: dict[int, list[str]] = {}
    for op, key in zip(ops, order, strict=True):
        if key in asked:
            pulls.setdefault(op.server or 0, []).append(key)
    with validated(where, "steps document"):
        link = StepLink(bytes_per_s=rate)
        for step in whole:
            for keys in pulls.values():
                _order_as_served(step, keys, link.bytes_per_s * 1e-6)
        return StepsDocument(
            name=name or Path(where).name.partition(".")[0],
            batch=batch,
            servers=servers,
            ops=tuple(ops),
            steps=tuple(_times(step, order) for step in whole),
            link=link,
            metadata={"source": "tf-run-metadata", "steps_read": len(traced), "steps_dropped": dropped},
        )


def _read(path: str | Path) -> Iterator[_Traced]:
    import json

    with open_binary(path) as file:
        try:
            document = json.load(file)
        except (ValueError, RecursionError) as error:
            raise FormatError(path, f"not JSON: {error}") from None
    runs = document if isinstance(document, list) else [document]
    for position, run in enumerate(runs):
        place = f"step {position}"
        if not isinstance(run, dict) or "stepStats" not in run:
            raise FormatError(path, "no stepStats: expected RunMetadata as MessageToDict writes it", place)
        if not run.get("partitionGraphs"):
            reason = "no partitionGraphs: trace with output_partition_graphs=True"
            raise FormatError(path, reason, place)
        try:
            yield _traced(path, run, place)
        except (AttributeError, KeyError, TypeError) as error:
            raise FormatError(path, f"not RunMetadata: {error!r}", place) from None


def _traced(path: str | Path, run: dict[str, Any], place: str) -> _Traced:
    nodes: dict[str, _Node] = {}
    for graph in run["partitionGraphs"]:
        for node in graph.get("node", []):
            device = _DEVICE.search(node.get("device", ""))
            if device is None:
                raise FormatError(path, f'node "{node["name"]}" is on no job and task', place)
            for part in ("name", "op"):
                if not isinstance(node.get(part, ""), str):
                    raise FormatError(
                        path, f"the {part} of a node is {node[part]!r:.80}: expected a text", place
                    )
            key = _key(device["job"], device["task"], node["name"])
            inputs = (_key(device["job"], device["task"], _bare(name)) for name in node.get("input", []))
            nodes[key] = _Node(
                name=node["name"],
                op=node.get("op", ""),
                job=device["job"],
                task=int(device["task"]),
                inputs=tuple(dict.fromkeys(inputs)),
                edge=_edge(node) if node.get("op") in (*_SENDS, *_RECVS) else None,
            )
    step = _Traced(nodes=nodes)
    for device_stats in run["stepStats"].get("devStats", []):
        device = _DEVICE.search(device_stats.get("device", ""))
        for row in device_stats.get("nodeStats", []):
            start = number(row.get("allStartMicros", 0), path, "allStartMicros", place)
            length = number(row.get("allEndRelMicros", 0), path, "allEndRelMicros", place)
            if row["nodeName"] == "RecvTensor":
                label = _LABEL.search(row.get("timelineLabel", ""))
                if label is not None:
                    step.transfers[label["edge"]] = (start, length, _requested(path, row, place))
            elif device is not None:
                step.rows[_key(device["job"], device["task"], _bare(row["nodeName"]))] = (start, length)
    return step


def _key(job: str, task: str | int, name: str) -> str:
    return f"{job}:{task} {name}"


def _bare(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]


def _edge(node: dict[str, Any]) -> str | None:
    encoded = node.get("attr", {}).get("tensor_name", {}).get("s", "")
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _requested(path: str | Path, row: dict[str, Any], place: str) -> float:
    total = 0.0
    for output in row.get("output", []):
        allocation = output.get("tensorDescription", {}).get("allocationDescription", {})
        total += number(allocation.get("requestedBytes", 0), path, "requestedBytes", place)
    return total


def _has_servers_rows(step: _Traced) -> bool:
    on_servers = [key for key, node in step.nodes.items() if node.job == "ps" and node.edge is None]
    return not on_servers or any(key in step.rows for key in on_servers)


def _ops(path: str | Path, step: _Traced) -> tuple[list[StepsOp], list[str]]:
    """Return the ops, and for each the node or the edge whose times it has."""
    graph = networkx.DiGraph()
    sends = {node.edge: key for key, node in step.nodes.items() if node.op in _SENDS and node.edge}
    workers = {(node.job, node.task) for node in step.nodes.values() if node.job != "ps"}
    if len(workers) > 1:
        raise FormatError(path, f"ops of several workers: {sorted(workers)}; trace one worker")
    for key, node in step.nodes.items():
        graph.add_node(key)
        graph.add_edges_from((before, key) for before in node.inputs if before in step.nodes)
        if node.op in _RECVS and node.edge in sends:
            graph.add_edge(sends[node.edge], key)
    if not networkx.is_directed_acyclic_graph(graph):
        raise FormatError(path, "the partition graphs have a cycle: loops cannot be predicted")
    # What a server does before anything of this step has reached it costs nothing worth predicting.
    kept: dict[str, bool] = {}
    moves = {key for key, node in step.nodes.items() if node.op in _RECVS}
    for key in networkx.lexicographical_topological_sort(graph):
        node = step.nodes[key]
        fed = any(kept[before] or before in moves for before in graph.predecessors(key))
        kept[key] = node.op not in _SENDS and (node.job != "ps" or fed or key in moves)
    # What is left out stands for what it waited for.
    stands_for: dict[str, tuple[str, ...]] = {}
    ops, order = [], []
    for key in networkx.lexicographical_topological_sort(graph, key=lambda key: _start(step, key)):
        before: dict[str, None] = {}
        for previous in graph.predecessors(key):
            before |= dict.fromkeys(stands_for[previous])
        if not kept[key]:
            stands_for[key] = tuple(before)
            continue
        op = _op(path, step, key, graph, tuple(before))
        stands_for[key] = (op.name,)
        ops.append(op)
        order.append(key)
    return ops, order


def _asked(ops: Sequence[StepsOp], order: Sequence[str]) -> tuple[list[StepsOp], list[str]]:
    """Let pulls that wait for nothing wait for being asked for."""
    asked, keys = [], []
    for op, key in zip(ops, order, strict=True):
        if op.resource == "downlink" and not op.deps:
            asking = f"worker/ask/{op.name.removeprefix('down/')}"
            asked += [StepsOp(name=asking, resource="worker"), op.model_copy(update={"deps": (asking,)})]
            keys += [_ASKING + key, key]
        else:
            asked.append(op)
            keys.append(key)
    return asked, keys


def _start(step: _Traced, key: str) -> tuple[float, str]:
    node = step.nodes[key]
    if node.op in _RECVS and node.edge in step.transfers:
        return step.transfers[node.edge][0], key
    return step.rows.get(key, (0.0, 0.0))[0], key


def _op(
    path: str | Path, step: _Traced, key: str, graph: "networkx.DiGraph[str]", deps: tuple[str, ...]
) -> StepsOp:
    node = step.nodes[key]
    if node.op not in _RECVS:
        if node.job == "ps":
            return StepsOp(
                name=f"ps{node.task}/{node.name}",
                resource="ps",
                server=node.task,
                deps=deps,
                parameter=_variable(step, graph, key),
            )
        return StepsOp(name=f"worker/{node.name}", resource="worker", deps=deps)
    size = round(step.transfers[node.edge][2]) if node.edge in step.transfers else 0
    if node.job == "ps":
        users = [after for after in graph.successors(key) if step.nodes[after].job == "ps"]
        variables = {_variable(step, graph, user) for user in users}
        parameter = variables.pop() if len(variables) == 1 else None
        name, server = f"up/{node.edge}", node.task
        return StepsOp(
            name=name, resource="uplink", server=server, size_bytes=size, deps=deps, parameter=parameter
        )
    senders = (before for before in graph.predecessors(key) if step.nodes[before].op in _SENDS)
    sender = next(senders, None)
    if sender is None:
        raise FormatError(path, f'nothing sends what "{node.name}" receives')
    return StepsOp(
        name=f"down/{node.edge}",
        resource="downlink",
        server=step.nodes[sender].task,
        size_bytes=size,
        deps=deps,
        parameter=_variable(step, graph, sender),
    )


def _variable(step: _Traced, graph: "networkx.DiGraph[str]", key: str) -> str | None:
    """Return the variable that an op on a server reads or updates, if it is one."""
    job = step.nodes[key].job
    above = {key}
    todo = [key]
    found = set()
    while todo:
        at = todo.pop()
        if step.nodes[at].op in _HANDLES:
            found.add(step.nodes[at].name)
        for before in graph.predecessors(at):
            if before not in above and step.nodes[before].job == job and step.nodes[at].op not in _RECVS:
                above.add(before)
                todo.append(before)
    return found.pop() if len(found) == 1 else None


def _order_as_served(step: _Traced, pulls: Sequence[str], bytes_per_us: float) -> None:
    """Let pulls of one server start in the order in which they were under way.

    Their ends do not tell that order: a large tensor that came first may be unpacked last, and then ends
    after the small one behind it. The middle of the time that each needs of the link does.
    """
    edges = [node.edge for node in map(step.nodes.__getitem__, pulls) if node.edge in step.transfers]

    def middle(edge: str) -> float:
        start, length, size = step.transfers[edge]
        return start + length - size / bytes_per_us / 2

    latest = -math.inf
    for edge in sorted(edges, key=middle):
        start, length, size = step.transfers[edge]
        latest = max(start, latest + _LATER_US)
        if latest - start <= _TOGETHER_US:
            step.transfers[edge] = (latest, max(start + length - latest, 0.0), size)


def _times(step: _Traced, order: Sequence[str]) -> StepTimes:
    began = min(
        [start for start, _ in step.rows.values()] + [start for start, _, _ in step.transfers.values()]
    )
    starts, durations = [], []
    for key in order:
        node = step.nodes[key.removeprefix(_ASKING)]
        if node.op in _RECVS and node.edge in step.transfers:
            start, length, _ = step.transfers[node.edge]
            if key.startswith(_ASKING):
                start, length = began, start - began
        else:
            start, length = step.rows.get(key, (began, 0.0))
        starts.append(max(start - began, 0.0) * 1e-6)
        durations.append(length * 1e-6)
    return StepTimes(duration_s=tuple(durations), start_s=tuple(starts))


def _busy_rate(path: str | Path, steps: Sequence[_Traced]) -> float:
    """Return the median over steps of bytes per second while any transfer in a direction is under way."""
    rates = []
    for step in steps:
        for job in ("ps", "worker"):
            edges = {node.edge for node in step.nodes.values() if node.op in _RECVS and node.job == job}
            spans = sorted(step.transfers[edge] for edge in edges if edge in step.transfers)
            busy, reached = 0.0, 0.0
            for start, length, _ in spans:
                busy += max(start + length - max(start, reached), 0.0)
                reached = max(reached, start + length)
            total = sum(size for *_, size in spans)
            if busy > 0 and total > 0:
                rates.append(total / busy * 1e6)
    if not rates:
        raise FormatError(path, "no transfer has bytes: the rate of the link must be given")
    return sorted(rates)[len(rates) // 2]
