"""Node lists and tables of collective times: what is read, and what is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pace.errors import FormatError, InvalidGraph
from pace.formats.node_list import is_view, read_node_list, read_times
from pace.formats.reading import FormatWarning

TABLE = """\
  Group    Group Size  Collective                    1MB (ms)    2MB (ms)
-------  ------------  --------------------------  ----------  ----------
      0             8  all_gather_into_tensor            0.25        0.50
      0             8  all_gather_into_tensor_out        0.25        0.50
"""


def row(number: int, kind: str = "op", target: str = "aten.mm.default", **fields: Any) -> dict[str, Any]:
    """Return a node of a list."""
    base = {"i": number, "op": "call_function", "name": f"n{number}", "target": target, "kind": kind}
    return {**base, "deps": [], "bytes": 64, "dur": 0.0, **fields}


def program() -> list[dict[str, Any]]:
    """Return an input, its gather, a product, and the output."""
    return [
        row(0, op="placeholder", target="x", bytes=1000),
        row(1, "all_gather_into_tensor", deps=[0], group="0", in_bytes=1 << 20, bytes=8 << 20, dur=0.25),
        row(2, "wait", deps=[1], bytes=8 << 20),
        row(3, target="aten.view.default", deps=[2], bytes=8 << 20),
        row(4, deps=[3], dur=2.0),
        row(5, op="output", target="output", deps=[4]),
    ]


def write(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a node list, gzipped."""
    path = tmp_path / "nodes.json.gz"
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


def test_a_list_becomes_a_graph(tmp_path: Path) -> None:
    """Inputs are resident, times are in seconds, views share memory, and the output's nodes are returned."""
    graph = read_node_list(write(tmp_path, program()), copy_bytes_per_s=1e9)
    assert graph.name == "nodes"
    assert graph.resident_bytes == graph.resident_shard_bytes == 1000
    assert graph.communicators[0].ranks == 8
    gather, waiting, view, product = graph.nodes
    assert gather.collective is not None
    assert (gather.collective.op, gather.collective.input_bytes) == ("all-gather", 1 << 20)
    assert waiting.waits_for == gather.name
    assert (view.view_of, view.allocates_bytes) == (waiting.name, 0)
    assert (product.duration_s, product.allocates_bytes, product.returned) == (0.002, 64, True)


def test_shards_are_the_inputs_that_are_gathered(tmp_path: Path) -> None:
    """As they are or behind casts and views; each counts once, and other inputs do not."""
    gathered: dict[str, Any] = {"group": "0", "in_bytes": 1 << 10, "bytes": 8 << 10}
    rows = [
        row(0, op="placeholder", target="shard", bytes=2000),
        row(1, op="placeholder", target="batch", bytes=300),
        row(2, target="prims.convert_element_type.default", deps=[0], bytes=1000),
        row(3, "all_gather_into_tensor", deps=[2], **gathered),
        row(4, "wait", deps=[3]),
        row(5, deps=[1, 4]),
        row(6, "all_gather_into_tensor", deps=[5], **gathered),
        row(7, "wait", deps=[6]),
        row(8, "all_gather_into_tensor", deps=[0], **gathered),
        row(9, "wait", deps=[8]),
    ]
    graph = read_node_list(write(tmp_path, rows), copy_bytes_per_s=1e9)
    assert (graph.resident_bytes, graph.resident_shard_bytes) == (2300, 2000)


def test_a_table_prices_buckets(tmp_path: Path) -> None:
    """Between sizes time is linear, and below the smallest it is constant."""
    table = tmp_path / "times.table"
    table.write_text(TABLE)
    graph = read_node_list(write(tmp_path, program()), times=[read_times(table)], copy_bytes_per_s=1e9)
    (communicator,) = graph.communicators
    curve = communicator.costs[0].curve(communicator.ranks)
    assert communicator.ranks == 8
    assert [float(curve(size)) for size in (1000, 1 << 20, 3 << 19)] == [0.00025, 0.00025, 0.000375]


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_table_of_another_job_is_told_with_both_times(tmp_path: Path, factor: float) -> None:
    """The list has half or twice the time of the table, 0.25 ms."""
    table = tmp_path / "times.table"
    table.write_text(TABLE)
    rows = program()
    rows[1]["dur"] = 0.25 * factor
    told = rf"0\.25 ms by that table, but {0.25 * factor:g} ms by the list's own times"
    with pytest.warns(FormatWarning, match=told):
        read_node_list(write(tmp_path, rows), times=[read_times(table)], copy_bytes_per_s=1e9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "broadcast"}, "is no collective"),
        ({"deps": None}, "expected a node"),
        ({"kind": "all_reduce"}, "group"),
        ({"kind": ["op"]}, "kind is"),
        ({"i": 3}, "i is 3: another node has it"),
        ({"i": [4]}, "i is"),
        ({"deps": [[3]]}, "a dependency is"),
        ({"dur": "fast"}, "dur is 'fast': expected a number"),
        ({"dur": -1}, "dur is -1: expected a number"),
        ({"bytes": None}, "bytes is None"),
        ({"target": None}, "target is None"),
        ({"kind": "all_reduce", "group": "0", "in_bytes": "x"}, "in_bytes is 'x'"),
    ],
)
def test_a_node_that_cannot_be_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The error has the place in the list."""
    rows = program()
    rows[4].update(change)
    with pytest.raises(FormatError, match=rf"\[4\].*{message}"):
        read_node_list(write(tmp_path, rows), copy_bytes_per_s=1e9)


def test_a_collective_without_a_wait_is_named(tmp_path: Path) -> None:
    """The graph's own rules hold for lists too."""
    rows = [each for each in program() if each["kind"] != "wait"]
    rows[2]["deps"] = []
    with pytest.raises(InvalidGraph, match='collective "n1" has no wait'):
        read_node_list(write(tmp_path, rows), copy_bytes_per_s=1e9)


def test_a_table_without_sizes_is_refused(tmp_path: Path) -> None:
    """The first line says what is expected."""
    table = tmp_path / "times.table"
    table.write_text("nothing\n")
    with pytest.raises(FormatError, match="header with sizes"):
        read_times(table)


def test_units_of_a_table_come_from_its_header(tmp_path: Path) -> None:
    """Sizes and times of every column; a unit that is not known is refused, and so is a cell too many."""
    table = tmp_path / "times.table"
    table.write_text(TABLE.replace("1MB (ms)", "64KB (us)").replace("2MB (ms)", "1GB (s)"))
    ((_, samples),) = read_times(table).rows.values()
    assert dict(samples) == pytest.approx({1 << 16: 0.25e-6, 1 << 30: 0.5})
    table.write_text(TABLE.replace("1MB (ms)", "1MB (ns)"))
    with pytest.raises(FormatError, match="expected a header"):
        read_times(table)
    table.write_text(TABLE.replace("0.50", "0.50  0.75", 1))
    with pytest.raises(FormatError, match="line 3: expected a group, its size, a collective and 2 times"):
        read_times(table)


@pytest.mark.parametrize("cell", ["nan", "-0.5", "inf", "1e400", "fast"])
def test_a_time_that_cannot_be_is_named(tmp_path: Path, cell: str) -> None:
    """With its line."""
    table = tmp_path / "times.table"
    table.write_text(TABLE.replace("0.50", cell, 1))
    with pytest.raises(FormatError, match=f"line 3.*'{cell}'"):
        read_times(table)


def test_views_are_told_by_their_targets() -> None:
    """Products allocate; views, splits and their items do not."""
    views = ("aten.view.default", "aten.split.Tensor", "<built-in function getitem>", "aten._conj.default")
    assert all(map(is_view, views))
    assert not any(
        map(is_view, ("aten.mm.default", "aten.clone.default", "prims.convert_element_type.default"))
    )
