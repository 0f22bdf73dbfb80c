"""Graphs as lists of nodes, and tables of collective times beside them.

A node list is a JSON list, gzipped or not, in program order::

    {"i": 3, "op": "call_function", "name": "mm", "target": "aten.mm.default", "deps": [1, 2], "bytes": 4096,
     "kind": "op", "dur": 0.25}
    {"i": 4, ..., "kind": "all_gather_into_tensor", "group": "0", "in_bytes": 512, "bytes": 4096, "dur": 0.1}

`bytes` are those of the output, `dur` is in ms, and `kind` is "op", "wait" or the collective's name. Whether
an op returns a view is read from its target. A table has a header of sizes ("1MB (ms)", ...) and a row for
each group, group size and collective, by bytes of the collective's input.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pace.documents.collective_costs import SampledAllReduce
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.graph.nodes import CollectiveCall, CollectiveOp, Communicator, GraphNode, OpCost
from pace.errors import FormatError
from pace.formats.reading import number, read_lines, stream_json, warn, whole_number
from pace.formats.tensor_types import DTYPES

COLLECTIVES: dict[str, CollectiveOp] = {
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "all_to_all_single": "all-to-all",
}
VIEWS = frozenset(
    [
        "view",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "split",
        "split_with_sizes",
        "chunk",
        "t",
        "transpose",
        "select",
        "slice",
        "narrow",
        "alias",
        "detach",
        "as_strided",
        "view_as_complex",
        "view_as_real",
        "_conj",
        "_neg_view",
        "diagonal",
        "unfold",
        "unbind",
        "_unsafe_view",
    ]
)
_FIELDS = {"i", "op", "name", "target", "deps", "bytes", "kind", "dur"}
_SIZE = re.compile(r"\b([1-9]\d{0,8})([KMG])B(?:\s*\((\w+)\))?")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SECONDS = {"": 1e-3, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# By what factor the times of a table and of a list may differ in all without a warning.
MOST_APART = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """A table: for each (group, collective) the ranks and the (bytes, seconds) of its row."""

    path: Path
    rows: dict[tuple[str, CollectiveOp], tuple[int, tuple[tuple[float, float], ...]]]

    def costs(self, group: str) -> tuple[int, tuple[OpCost, ...]]:
        """Return the ranks of a group and the costs of its collectives."""
        ranks = 2
        costs = []
        for (name, op), (size, samples) in self.rows.items():
            if name == group:
                ranks = size
                costs.append(OpCost(op=op, cost=SampledAllReduce(samples=((1.0, samples[0][1]), *samples))))
        return ranks, tuple(costs)


def read_times(path: str | Path) -> CollectiveTimes:
    """Read a table of collective times; raises FormatError with the line at fault."""
    sizes: list[tuple[int, float]] = []  # bytes, and the seconds of a unit
    rows: dict[tuple[str, CollectiveOp], tuple[int, tuple[tuple[float, float], ...]]] = {}
    for line_number, line in read_lines(path):
        position = f"line {line_number}"
        if not sizes:
            found = _SIZE.findall(line)
            sizes = [(int(n) * _UNITS[unit], _SECONDS[time]) for n, unit, time in found if time in _SECONDS]
            if not sizes or len(sizes) < len(found):
                raise FormatError(path, 'expected a header with sizes such as "1MB (ms)"', position)
            continue
        cells = line.split()
        if not cells or set(line) <= {"-", " "}:
            continue
        op = COLLECTIVES.get(cells[2]) if len(cells) > 2 else None
        if op is None:
            continue  # a variant of another row, such as all_gather_into_tensor_out
        ranks = whole_number(cells[1], path, "the group's size", position)
        times = [number(cell, path, "a time", position) for cell in cells[3:]]
        if len(times) != len(sizes) or ranks < 1:
            raise FormatError(
                path, f"expected a group, its size, a collective and {len(sizes)} times", position
            )
        samples = tuple(
            (float(size), time * unit_s) for (size, unit_s), time in zip(sizes, times, strict=True)
        )
        rows[cells[0], op] = ranks, samples
    if not rows:
        raise FormatError(path, "no rows of collective times")
    return CollectiveTimes(path=Path(path), rows=rows)


def read_node_list(
    path: str | Path,
    *,
    times: Iterable[CollectiveTimes] = (),
    copy_bytes_per_s: float,
    name: str | None = None,
) -> CollectiveGraph:
    """Make a graph from a list of a compiled program's nodes.

    Parameters
    ----------
    times
        Tables; the one that prices most of the list's collectives as the list does is taken. Without one, and
        for collectives that it lacks, costs go through the list's own (in_bytes, dur).
    copy_bytes_per_s
        Rate of the device's memory.

    Raises
    ------
    FormatError
        With the node at fault.
    InvalidGraph
        If the nodes are no program, such as a collective without a wait.
    """
    rows = [_row(path, place, row) for place, row in enumerate(stream_json(path, "item"))]
    if not rows:
        raise FormatError(path, "no nodes")
    names: dict[int, str] = {}
    for place, row in enumerate(rows):
        if row["i"] in names:
            raise FormatError(path, f"i is {row['i']}: another node has it", f"[{place}]")
        names[row["i"]] = row["name"]
    inputs = {row["i"] for row in rows if row["op"] in ("placeholder", "get_attr")}
    outputs = {row["i"] for row in rows if row["op"] == "output"}
    returned = {dep for row in rows if row["i"] in outputs for dep in row["deps"]}
    sent = {row["i"] for row in rows if row["kind"] in COLLECTIVES}
    nodes = []
    for row in rows:
        if row["i"] not in inputs | outputs:
            nodes.append(_node(row, names, inputs, sent, returned=row["i"] in returned))
    collectives = [row for row in rows if row["i"] in sent]
    groups = sorted({row["group"] for row in collectives})
    return CollectiveGraph(
        name=name or Path(path).name.removesuffix(".gz").removesuffix(".json"),
        wires=tuple(groups) or ("network",),
        communicators=tuple(_communicators(path, groups, collectives, tuple(times))),
        copy_bytes_per_s=copy_bytes_per_s,
        resident_bytes=sum(row["bytes"] for row in rows if row["i"] in inputs),
        resident_shard_bytes=_shard_bytes(rows, inputs),
        nodes=tuple(nodes),
    )


def _shard_bytes(rows: Sequence[dict[str, Any]], inputs: set[int]) -> int:
    """Return the bytes of inputs that are gathered as they are, or behind casts and views."""
    by_number = {row["i"]: row for row in rows}
    shards = set()
    for row in rows:
        above = row
        while COLLECTIVES.get(row["kind"]) == "all-gather" and len(above["deps"]) == 1:
            (dep,) = above["deps"]
            if dep in inputs:
                shards.add(dep)
            if dep in inputs or dep not in by_number or by_number[dep]["kind"] != "op":
                break
            above = by_number[dep]
    return sum(by_number[shard]["bytes"] for shard in shards)


def _row(path: str | Path, place: int, row: Any) -> dict[str, Any]:
    position = f"[{place}]"
    if not isinstance(row, dict) or not row.keys() >= _FIELDS or not isinstance(row["deps"], list):
        raise FormatError(path, f"expected a node with {', '.join(sorted(_FIELDS))}", position)
    for field in ("op", "name", "target", "kind"):
        if not isinstance(row[field], str):
            raise FormatError(path, f"{field} is {row[field]!r:.80}: expected a text", position)
    if row["kind"] not in COLLECTIVES and row["kind"] not in ("op", "wait"):
        raise FormatError(
            path, f'"{row["kind"]}" is no collective; there are {", ".join(COLLECTIVES)}', position
        )
    if row["kind"] in COLLECTIVES and not row.keys() >= {"group", "in_bytes"}:
        raise FormatError(path, "a collective must have group and in_bytes", position)
    read = {
        **row,
        "i": whole_number(row["i"], path, "i", position),
        "deps": [whole_number(dep, path, "a dependency", position) for dep in row["deps"]],
        "bytes": whole_number(row["bytes"], path, "bytes", position),
        "dur": number(row["dur"], path, "dur", position),
    }
    if row["kind"] in COLLECTIVES:
        read["group"] = str(row["group"])
        read["in_bytes"] = whole_number(row["in_bytes"], path, "in_bytes", position)
    return read


def _node(
    row: dict[str, Any], names: dict[int, str], inputs: set[int], sent: set[int], *, returned: bool
) -> GraphNode:
    deps = tuple(dict.fromkeys(names.get(dep, f"node {dep}") for dep in row["deps"] if dep not in inputs))
    if row["kind"] in COLLECTIVES:
        call = CollectiveCall(
            op=COLLECTIVES[row["kind"]],
            communicator=str(row["group"]),
            dtype=DTYPES.get(str(row.get("dtype")).removeprefix("torch.")),
            input_bytes=max(1, row["in_bytes"]),
            output_bytes=row["bytes"],
        )
        return GraphNode(name=row["name"], deps=deps, collective=call, returned=returned)
    waits = [dep for dep in row["deps"] if dep in sent]
    if row["kind"] == "wait" and waits:
        return GraphNode(name=row["name"], deps=deps, waits_for=names[waits[0]], returned=returned)
    # A wait for an input waits for what was sent before this program.
    view = row["kind"] == "wait" or is_view(row["target"])
    return GraphNode(
        name=row["name"],
        duration_s=float(row["dur"]) / 1e3,
        deps=deps,
        view_of=deps[0] if view and deps else None,
        allocates_bytes=0 if view else row["bytes"],
        returned=returned,
    )


def is_view(target: str) -> bool:
    """Return whether an op of this name returns its input's memory."""
    if "getitem" in target:
        return True
    space, _, op = target.partition(".")
    return space == "aten" and op.partition(".")[0] in VIEWS


def _communicators(
    path: str | Path,
    groups: Sequence[str],
    collectives: Sequence[dict[str, Any]],
    times: Sequence[CollectiveTimes],
) -> Iterable[Communicator]:
    best = max(times, key=lambda table: _agreeing(table, collectives), default=None)
    if best is not None:
        _warn_of_other_times(path, best, collectives)
    for group in groups:
        ranks, costs = (2, ()) if best is None else best.costs(group)
        ranks = _ranks(row for row in collectives if row["group"] == group) or ranks
        priced = {cost.op for cost in costs}
        own: list[OpCost] = []
        for kind in sorted({row["kind"] for row in collectives if row["group"] == group}):
            op = COLLECTIVES[kind]
            if op in priced:
                continue
            samples = {
                (float(max(1, row["in_bytes"])), float(row["dur"]) / 1e3)
                for row in collectives
                if row["group"] == group and row["kind"] == kind
            }
            least = min(samples)[1]
            own.append(OpCost(op=op, cost=SampledAllReduce(samples=((1.0, least), *sorted(samples)))))
            if best is not None:
                warn(
                    path,
                    f"{best.path.name} has no row of {kind} for group {group}: the list's own times are used",
                )
        yield Communicator(name=group, ranks=ranks, wire=group, costs=(*costs, *own))


def _ranks(collectives: Iterable[dict[str, Any]]) -> int | None:
    """Return the ranks that all-gathers and reduce-scatters of a group have by their bytes, or None."""
    found = set()
    for row in collectives:
        op = COLLECTIVES[row["kind"]]
        whole, shard = sorted((row["bytes"], row["in_bytes"]), reverse=True)
        if op in ("all-gather", "reduce-scatter"):
            found.add(whole // shard if shard and whole > shard and whole % shard == 0 else None)
    return found.pop() if len(found) == 1 else None


def _agreeing(table: CollectiveTimes, collectives: Sequence[dict[str, Any]]) -> int:
    """Return how many collectives a table prices as the list does."""
    prices = _priced(table, collectives)
    return sum(abs(in_table - in_list) <= 1e-6 * max(1.0, in_list) for in_list, in_table in prices)


def _priced(table: CollectiveTimes, collectives: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    """Yield the ms of each collective that a table prices: in the list, and in the table."""
    curves = {
        (group, op): SampledAllReduce(samples=((1.0, samples[0][1]), *samples)).cost(ranks)
        for (group, op), (ranks, samples) in table.rows.items()
    }
    for row in collectives:
        curve = curves.get((row["group"], COLLECTIVES[row["kind"]]))
        if curve is not None:
            yield row["dur"], float(curve(row["in_bytes"])) * 1e3


def _warn_of_other_times(
    path: str | Path, table: CollectiveTimes, collectives: Sequence[dict[str, Any]]
) -> None:
    """Warn if the collectives of a list take other times in all than in a table."""
    prices = list(_priced(table, collectives))
    in_list, in_table = (sum(each) for each in zip(*prices, strict=True)) if prices else (0.0, 0.0)
    if max(in_list, in_table) > MOST_APART * min(in_list, in_table):
        warn(
            path,
            f"the {len(prices)} collectives in {table.path.name} take {in_table:,.4g} ms by that table, but "
            f"{in_list:,.4g} ms by the list's own times: the table is used. If it is of another job or "
            "network, leave it out",
        )
