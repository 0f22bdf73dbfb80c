"""Kineto traces of several ranks, in the form that NCCL's instrumentation has."""

import json
from pathlib import Path
from typing import Any

import pytest

from pace import FormatError, InvalidJobProgram, check_order
from pace.formats.kineto_order import first_difference
from pace.formats.kineto_trace import read_kineto_trace

MAIN, BACKWARD = 11, 12


def issued(
    group: str, ranks: list[int], name: str = "allreduce", *, thread: int = MAIN, elements: int = 4
) -> dict[str, Any]:
    """Return a recorded collective; its time is its place in the trace."""
    return {
        "name": "record_param_comms",
        "tid": thread,
        "args": {
            "Process Group Name": group,
            "Process Group Ranks": str(ranks),
            "Group size": len(ranks),
            "Collective name": name,
            "In msg nelems": elements,
            "dtype": "Float",
        },
    }


def op(name: str, thread: int = MAIN) -> dict[str, Any]:
    """Return an operator."""
    return {"name": name, "tid": thread, "args": {}}


def trace(folder: Path, rank: int | None, events: list[dict[str, Any]], *, world: int = 2) -> Path:
    """Write a trace of one step."""
    written = [
        {"ph": "X", "cat": "cpu_op", "pid": 1, "ts": 10.5 + 10 * place, "dur": 5, **event}
        for place, event in enumerate(events)
    ]
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": MAIN, "args": {}}
    step |= {"ts": 10.0, "dur": 10 * len(events) + 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 11.5, "dur": 1, "args": {}}
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}}
    file = folder / f"trace_{rank}_{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps({"schemaVersion": 1, **info, "traceEvents": [*written, step, kernel]}))
    return file


def differs(*files: Path) -> str | None:
    """Return what `pace headroom` warns of."""
    return first_difference([read_kineto_trace(file) for file in files])


def test_equal_orders_cannot_hang(tmp_path: Path) -> None:
    """All-reduces of the backward pass's thread, beside others of its caller; DDP's traces look so."""
    events = [
        issued("0", [0, 1], "broadcast"),
        issued("1", [0, 1], "_allgather_base"),
        issued("0", [0, 1], thread=BACKWARD),
        op("autograd::engine::evaluate_function: AddBackward0", BACKWARD),
        op("aten::_local_scalar_dense"),
        issued("0", [0, 1], thread=BACKWARD),
    ]
    files = [trace(tmp_path, rank, events) for rank in (0, 1)]
    assert differs(*files) is None
    for streams in ("side-by-side", "launch-order"):
        report = check_order(files, streams=streams)
        assert report.cannot_hang, report.findings
    assert (report.num_ranks, report.num_operations) == (2, 10)


def test_two_groups_in_two_orders(tmp_path: Path) -> None:
    """The warning names the first difference, and the proof who waits for whom."""
    one, other = issued("tp", [0, 1], "allgather"), issued("dp", [0, 1])
    files = [
        trace(tmp_path, 0, [one, other, one, other]),
        trace(tmp_path, 1, [one, other, other, one]),
    ]
    told = differs(*files)
    assert told == (
        'after 2 equal collectives, rank 0 issues allgather of group "tp" and rank 1 allreduce of group "dp"'
    )
    assert [finding.kind for finding in check_order(files).findings] == ["circle"]


def test_differences_within_a_group(tmp_path: Path) -> None:
    """Other kinds, sizes and counts."""
    one = issued("0", [0, 1])
    first = trace(tmp_path, 0, [one, one])
    kind = trace(tmp_path, 1, [one, issued("0", [0, 1], "reduce_scatter")])
    assert differs(first, kind) == 'number 2 of group "0" is allreduce on rank 0 and reduce_scatter on rank 1'
    assert [finding.kind for finding in check_order([first, kind]).findings] == ["kind"]
    size = trace(tmp_path, 1, [one, issued("0", [0, 1], elements=8)])
    assert [finding.kind for finding in check_order([first, size]).findings] == ["size"]
    count = trace(tmp_path, 1, [one])
    assert differs(first, count) == (
        'rank 0 issued 2 collectives of group "0" in the recorded steps, and rank 1 1'
    )
    assert [finding.kind for finding in check_order([first, count]).findings] == ["count"]


def test_groups_of_one_name_and_other_ranks(tmp_path: Path) -> None:
    """Each pair of a mesh has a group of that name: only peers are compared."""
    files = [
        trace(tmp_path, rank, [issued("mesh", [rank // 2 * 2, rank // 2 * 2 + 1])] * (1 + rank // 2), world=4)
        for rank in range(4)
    ]
    assert differs(*files) is None
    report = check_order(files)
    assert report.cannot_hang, report.findings


def test_what_traces_must_say(tmp_path: Path) -> None:
    """The rank of each, all of them once, and collectives."""
    one = issued("0", [0, 1])
    first = trace(tmp_path, 0, [one])
    for files, error, words in (
        ([first, trace(tmp_path, None, [one])], FormatError, "does not say its rank"),
        ([first, first], FormatError, "rank 0 is also the rank of"),
        ([first], FormatError, "rank 0 alone"),
        (
            [trace(tmp_path, 0, [op("aten::mm")]), trace(tmp_path, 1, [op("aten::mm")])],
            FormatError,
            "no record_param_comms .* Gloo .* flight recorder",
        ),
        ([first, trace(tmp_path, 2, [one])], InvalidJobProgram, "rank 1, whose file is missing"),
    ):
        with pytest.raises(error, match=words):
            check_order(files)
