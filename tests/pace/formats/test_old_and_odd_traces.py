"""Kineto traces that are whole, but written otherwise than today's profiler writes them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pace.errors import FormatError
from pace.formats.any_format import read_any
from pace.formats.kineto import read_kineto
from pace.formats.kineto_passes import pass_starts
from pace.formats.kineto_records import BACKWARD
from pace.formats.kineto_trace import HostOp
from pace.formats.reading import stream_json
from pace.formats.recognize import tell_format
from tests.pace.formats.job_kinds import STEP_US, ddp_events, document_of, serial_events
from tests.pace.formats.kineto_features import make_event
from tests.pace.formats.traces import MAIN, STREAM, Event, kineto_document, kineto_events, write_json

_OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}


def _expect_the_same(folder: Path, text: str, *, workers: int | None = None) -> None:
    expected = read_kineto([write_json(folder / "t.json", kineto_document(kineto_events()))])
    path = folder / "odd.json"
    path.write_text(text, encoding="utf-8")
    made = read_kineto([path], workers=workers, name="t")
    said = {"rank": expected.metadata["rank"]}  # which a list does not say
    assert made.replace(metadata={**made.metadata, **said}) == expected


def test_integers_above_two_to_the_63(tmp_path: Path) -> None:
    """Addresses and hashes are as large; everything else is read as before."""
    events = kineto_events()
    events[5]["args"]["Addr"] = 2**64 - 1
    _expect_the_same(tmp_path, json.dumps(kineto_document(events, hash=2**65)))


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    """Nothing says how many workers there were."""
    _expect_the_same(tmp_path, json.dumps(kineto_events()), workers=2)


def test_the_job_described_behind_the_events(tmp_path: Path) -> None:
    """`distributedInfo` counts wherever it stands."""
    document = kineto_document(kineto_events())
    last = {"distributedInfo": document.pop("distributedInfo")}
    _expect_the_same(tmp_path, json.dumps({**document, **last}))


def test_categories_of_torch_1_8(tmp_path: Path) -> None:
    """`Operator`, `Kernel` and `Runtime`; annotations stand among the operators."""
    events: list[Event] = [event | {"cat": _OLD.get(event.get("cat", ""), "")} for event in kineto_events()]
    _expect_the_same(tmp_path, json.dumps(kineto_document(events)))


@pytest.mark.parametrize("first_us", [0, 5_000])
def test_a_clock_that_begins_in_the_middle_of_a_step(tmp_path: Path, first_us: int) -> None:
    """The first event of a trace need not be its earliest: times before it are below 0."""
    events = serial_events()
    events.sort(key=lambda event: abs(event.get("ts", 0) - 1_000_000 - first_us))
    profile = read_kineto([write_json(tmp_path / "t.json", document_of(events))])
    assert profile.metadata["replay"]["error"] == pytest.approx(0, abs=0.1)


def test_a_trace_that_lost_all_but_the_job_is_still_a_trace(tmp_path: Path) -> None:
    """It is not taken for a profile without fields."""
    path = write_json(tmp_path / "t.json", {"distributedInfo": {"rank": 0, "world_size": 2}})
    assert tell_format(path) == "kineto"
    with pytest.raises(FormatError, match="no operators: expected a Kineto trace"):
        read_any([path])


def test_the_ranks_of_a_job_in_one_file_are_refused(tmp_path: Path) -> None:
    """Their operators would be taken for one process's, and their steps for each other's."""
    events = ddp_events()
    others = [event | {"pid": 200} for event in events if event.get("pid") == 100]
    path = write_json(tmp_path / "merged.json", document_of([*events, *others]))
    with pytest.raises(FormatError, match="of 2 processes in one file: pass one trace for each rank"):
        read_kineto([path])
    same_process = [event | {"tid": 900 + event["tid"]} for event in events if "tid" in event]
    path = write_json(tmp_path / "merged.json", document_of([*events, *same_process]))
    with pytest.raises(FormatError, match="ProfilerStep#0 is in it twice"):
        read_kineto([path])


def test_ascends_profiler_is_told_from_kineto(tmp_path: Path) -> None:
    """Its kernels have no category, so nothing of the device would be seen."""
    device = {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "Ascend Hardware"}}
    path = write_json(tmp_path / "trace_view.json", [*ddp_events(), device])
    with pytest.raises(FormatError, match=r"Ascend's profiler.*pace import layers"):
        read_any([path])


@pytest.mark.parametrize("name", ["matmul Cmpt Exec", "aiuSubmitToHardware", "aiuCommsAllReduce"])
def test_a_trace_of_ibms_aiu_is_named(tmp_path: Path, name: str) -> None:
    """Its work has other categories, or none, so nothing of the device would be seen."""
    work = {"ph": "X", "name": name, "pid": 9, "tid": 1, "ts": 1_000_100, "dur": 5, "args": {"TS1": "12"}}
    path = write_json(tmp_path / "trace.json", [*ddp_events(), work])
    with pytest.raises(FormatError, match=r"IBM's AIU.*pace import layers"):
        read_any([path])


def _quiet_events() -> list[Event]:
    """Return DDP's events without the first step's all-reduces."""
    second_us = 1_000_000 + STEP_US
    sends = ("gloo:all_reduce", "c10d::allreduce_")
    return [event for event in ddp_events() if event.get("ts", 0) >= second_us or event["name"] not in sends]


def test_steps_of_micro_batches_are_refused(tmp_path: Path) -> None:
    """A step in the trace would be taken for one that sends and updates everything."""
    quiet = [
        event
        for event in ddp_events()
        if event.get("ts", 0) >= 1_000_000 + STEP_US
        or event["name"] not in ("gloo:all_reduce", "c10d::allreduce_")
    ]
    with pytest.raises(FormatError, match=r"1 of 3 steps have no all-reduce, .*once for each optimizer.step"):
        read_kineto([write_json(tmp_path / "t.json", document_of(quiet))])
    update = make_event("user_annotation", "Optimizer.step#SGD.step", MAIN, 1_007_950 + STEP_US, 200)
    with pytest.raises(FormatError, match=r"2 of 3 steps have no update, .*once for each optimizer.step"):
        read_kineto([write_json(tmp_path / "t.json", document_of([*ddp_events(), update]))])


def test_local_sgd_is_not_taken_for_ddp(tmp_path: Path) -> None:
    """Every step updates, and only some have all-reduces: no step is like the others."""
    second_us = 1_000_000 + STEP_US
    sends = ("gloo:all_reduce", "c10d::allreduce_")
    events = [
        event for event in ddp_events() if event.get("ts", 0) >= second_us or event["name"] not in sends
    ]
    for step in range(3):
        at = 1_007_950 + STEP_US * step
        events.append(make_event("user_annotation", "Optimizer.step#SGD.step", MAIN, at, 200))
    with pytest.raises(FormatError, match=r"1 of 3 steps update without an all-reduce.*pace diloco"):
        read_kineto([write_json(tmp_path / "t.json", document_of(events))])


def test_cuda_graphs_are_not_taken_for_inference(tmp_path: Path) -> None:
    """All kernels of a step have one launch, and only what runs outside the graph is an operator."""
    events: list[Event] = []
    for step in range(3):
        at, launch = 1_000_000 + STEP_US * step, {"correlation": step}
        events += [
            make_event("user_annotation", f"ProfilerStep#{step}", MAIN, at, 9000),
            make_event("cpu_op", "aten::copy_", MAIN, at + 10, 20),
            make_event("cuda_runtime", "cudaGraphLaunch", MAIN, at + 50, 9, **launch),
            *(make_event("kernel", f"k{k}", STREAM, at + 100 * k, 90, **launch) for k in range(1, 9)),
        ]
    with pytest.raises(FormatError, match=r"100% of the device's time is in CUDA graphs.* without CUDA"):
        read_kineto([write_json(tmp_path / "t.json", kineto_document(events))])


def test_a_trace_of_the_device_alone_says_what_to_record(tmp_path: Path) -> None:
    """Kernels without operators come from `activities=[ProfilerActivity.CUDA]`."""
    kernels = [event for event in kineto_events() if event.get("cat") in ("kernel", "cuda_runtime")]
    with pytest.raises(FormatError, match=r"only the device was recorded: add ProfilerActivity\.CPU"):
        read_kineto([write_json(tmp_path / "t.json", kineto_document(kernels))])


@pytest.mark.parametrize(("opening", "levels"), [("[", 20_000), ('{"]}\\"":[', 5_000)])
def test_what_is_nested_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, opening: str, levels: int
) -> None:
    """The parser's memory is quadratic in the depth; brackets in names count neither up nor down."""
    deep = tmp_path / "deep.json"
    deep.write_text('{"traceEvents": [' + opening * levels)
    packed = tmp_path / "deep.json.gz"
    packed.write_bytes(gzip.compress(deep.read_bytes()))
    for file in (deep, packed):
        with pytest.raises(FormatError, match="nested too deep"):
            list(stream_json(file, "traceEvents.item"))


def test_brackets_in_texts_are_no_nesting(tmp_path: Path) -> None:
    """Also behind escapes, and where a chunk of the file ends inside a text."""
    items = ["[{" * 50_000, '\\"[' * 50_000, "\\", {"[": "]"}]
    path = tmp_path / "texts.json"
    path.write_text(json.dumps({"traceEvents": items}))
    assert list(stream_json(path, "traceEvents.item")) == items


def test_the_first_backward_op_begins_the_first_pass_only() -> None:
    """Its sequence number may be of an op that ran after it, as in a damaged trace: no pass is empty."""
    nothing: dict[str, Any] = dict.fromkeys(("external", "record", "size_bytes", "dtype"))
    backward = [
        HostOp(name=BACKWARD, thread=(1, 1), start_s=at, end_s=at + 0.5, sequence=number, **nothing)
        for at, number in ((1.0, 7), (2.0, 8), (6.0, 7))
    ]
    assert pass_starts(backward, {7: 5.0, 8: 0.0}) == [0, 2]
