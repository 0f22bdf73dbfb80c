"""Peaks of node lists by torch's rule, worked out by hand."""

from typing import Any

from benchmarks.studies.sharded_graphs.torch_memory import torch_peak_bytes


def row(i: int, kind: str, deps: list[int], bytes_: int, target: str = "aten.mm.default") -> dict[str, Any]:
    """Return a node of a list; gathers read 4 bytes."""
    op = {"input": "placeholder", "output": "output"}.get(kind, "call_function")
    listed = kind if kind in ("wait", "all_gather_into_tensor") else "op"
    return {"i": i, "op": op, "target": target, "deps": deps, "bytes": bytes_, "kind": listed, "in_bytes": 4}


ROWS = [
    row(0, "input", [], 8),
    row(1, "all_gather_into_tensor", [0], 16),
    row(2, "wait", [1], 16),
    row(3, "all_gather_into_tensor", [0], 16),
    row(4, "wait", [3], 16),
    row(5, "op", [2], 1),
    row(6, "op", [4], 1),
    row(7, "output", [5, 6], 0),
]


def test_a_wait_returns_a_storage_of_its_own() -> None:
    """Input, the first wait's output, and the second gather's and its wait's: 8 + 3 * 16."""
    assert torch_peak_bytes(ROWS, [1, 2, 3, 4, 5, 6]) == 8 + 3 * 16


def test_gathers_in_their_places_use_less() -> None:
    """The first output is freed before the second is gathered; one result stays."""
    assert torch_peak_bytes(ROWS, [1, 2, 5, 3, 4, 6]) == 8 + 1 + 2 * 16


def test_a_bucket_holds_its_buffer_beside_the_outputs() -> None:
    """The wait's 32 bytes are beside the buffer's, then beside the copies of both outputs."""
    assert torch_peak_bytes(ROWS, [[1, 3], 2, 4, 5, 6]) == 8 + 2 * 32
