"""Kineto traces with what real ones have: work from before recording, old ids, rounded clocks."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from pace.documents.profile import Profile
from pace.formats.import_report import import_report, report_lines
from pace.formats.kineto import read_kineto
from tests.pace.formats.job_kinds import document_of, hybrid_events
from tests.pace.formats.kineto_features import launched_events, make_event, reentrant_events, rounded_events
from tests.pace.formats.traces import (
    ACCUMULATE,
    AUTOGRAD,
    EVALUATE,
    MAIN,
    NCCL,
    STREAM,
    Event,
    kineto_document,
    kineto_events,
    write_json,
)


def _read(folder: Path, events: list[Event], **options: Any) -> Profile:
    path = write_json(folder / "rank0.json", kineto_document(events))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_kineto([path], **({"clock": "device"} | options))


def _busy_s(profile: Profile) -> float:
    return sum(op.duration_s for op in profile.ops)


def test_kernels_launched_before_recording_are_dropped_and_counted(tmp_path: Path) -> None:
    """They run inside the first step, half as long as all its ops, and their launches have lower ids."""
    events = [
        event | {"args": event["args"] | {"correlation": event["args"]["correlation"] + 500}}
        if "correlation" in event["args"]
        else event
        for event in kineto_events()
    ]
    early = [make_event("kernel", "k", STREAM, 1_000_200 + 100 * n, 90, correlation=n) for n in range(1, 6)]
    profile = _read(tmp_path, [*events, *early])
    assert _busy_s(profile) == pytest.approx(_busy_s(_read(tmp_path, kineto_events())))
    assert profile.metadata["dropped"]["kernels_before_recording"] == 5
    assert profile.metadata["dropped"]["kernels_before_recording_s"] == pytest.approx(450e-6)


def test_kernels_of_a_fused_optimizer_are_update_time(tmp_path: Path) -> None:
    """They are launched inside `Optimizer.step` and outside any operator: 300 us, beside the 230 of an op."""
    events = kineto_events()
    for step in range(3):
        at = 1_008_100 + 10_000 * step
        events += [
            make_event("user_annotation", "Optimizer.step#FusedAdam.step", MAIN, at, 400),
            make_event("cuda_runtime", "cudaLaunchKernel", MAIN, at + 50, 5, correlation=900_000 + step),
            make_event("kernel", "multi_tensor_apply", STREAM, at + 300, 300, correlation=900_000 + step),
        ]
    profile = _read(tmp_path, events)
    assert profile.metadata["update_s"] == pytest.approx(530e-6)


def test_calls_belong_to_the_step_that_issued_them(tmp_path: Path) -> None:
    """A device 7 ms behind its host runs the last calls of a step within the next step's window."""
    events = launched_events(behind_us=7000)
    profile = _read(tmp_path, events)
    assert profile.metadata["recorded_allreduces_match"] is True


def test_sizes_come_from_the_annotations_around_a_launch(tmp_path: Path) -> None:
    """An older NCCL says nothing itself, and its kernel may be named for another collective."""
    events = []
    for number, event in enumerate(kineto_events()):
        events.append(event)
        if event.get("cat") == "kernel" and event["tid"] == NCCL:
            elements = event["args"]["In msg nelems"]
            event["name"] = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"
            event["args"] = {"correlation": 700_000 + number}
            shape = {"Input Dims": [[elements]], "Input type": ["float"]}
            events += [
                make_event("user_annotation", "nccl:all_reduce", AUTOGRAD, event["ts"] - 20, 15, **shape),
                make_event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    AUTOGRAD,
                    event["ts"] - 10,
                    2,
                    correlation=700_000 + number,
                ),
            ]
    profile = _read(tmp_path, events)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 70e-6, 1200: 90e-6})
    assert profile.metadata["recorded_allreduces_match"] is True


def test_other_collectives_are_no_all_reduces(tmp_path: Path) -> None:
    """An all-to-all on a network stream is neither compute nor a sample of the cost."""
    events = kineto_events()
    for step in range(3):
        at = 1_001_400 + 10_000 * step
        events.append(
            make_event("kernel", "ncclKernel_AllToAll_RING", NCCL, at, 60, correlation=800_000 + step)
        )
    profile = _read(tmp_path, events)
    compute = sum(op.duration_s for op in profile.ops if op.kind == "compute")
    assert compute == pytest.approx(_busy_s(_read(tmp_path, kineto_events())))
    assert len(profile.allreduce.model_dump()["samples"]) == 2
    assert sum(profile.metadata["other_collectives"].values()) == 3


def test_undefined_gradients_are_left_out(tmp_path: Path) -> None:
    """A fused embedding accumulates nothing: an input without a type is no gradient of unknown size."""
    events = kineto_events()
    for event in events:
        if event["name"] == ACCUMULATE and event["args"]["Input Dims"] == [[10]]:
            event["args"] |= {"Input Dims": [[]], "Input type": [""]}
    for event in events:
        if event["args"].get("In msg nelems") == 210:
            event["args"]["In msg nelems"] = 200
    profile = _read(tmp_path, events)
    assert [gradient.size_bytes for gradient in profile.gradients] == [800, 1200]
    assert profile.metadata["dropped"]["undefined_gradients"] == 1
    assert profile.metadata["recorded_allreduces_match"] is True


def test_an_external_id_that_repeats_the_correlation_is_no_operators(tmp_path: Path) -> None:
    """Older profilers write it so; here every id is that of another operator."""
    events = kineto_events()
    for event in events:
        if event.get("cat") == "kernel" and "correlation" in event["args"]:
            event["args"]["correlation"] += 4
            event["args"]["External id"] = event["args"]["correlation"]
        elif event.get("cat") == "cuda_runtime":
            event["args"]["correlation"] += 4
        elif event.get("cat") == "kernel":
            event["args"].pop("External id", None)
    expected = _read(tmp_path, kineto_events())
    assert [op.duration_s for op in _read(tmp_path, events).ops] == [op.duration_s for op in expected.ops]


def test_a_rounded_clock_makes_no_other_steps(tmp_path: Path) -> None:
    """In two of three steps a child of 1 us starts when its parent's rounded time is over."""
    events = rounded_events()
    profile = _read(tmp_path, events)
    assert profile.metadata["steps"] == 3
    assert not any("detach" in op.name for op in profile.ops)


def test_collectives_keep_their_places_where_a_tiny_op_is_taken_off(tmp_path: Path) -> None:
    """The last step alone has a backward op of 1 us, so its others have later places."""
    extra = make_event("cpu_op", EVALUATE + "AliasBackward0", AUTOGRAD, 1_024_395, 1)
    made = []
    for events in (hybrid_events(), [*hybrid_events(), extra]):
        trace = write_json(tmp_path / "trace.json", document_of(events, workers=4))
        made.append(read_kineto([trace]))
    assert [(op.name, op.deps) for op in made[1].ops] == [(op.name, op.deps) for op in made[0].ops]


def test_a_clock_of_nanoseconds_is_taken_at_its_word(tmp_path: Path) -> None:
    """Where times have fractions, an op right after another one is an op of its own."""
    events = kineto_events()
    for step in range(3):
        at = 1_001_300.5 + 10_000 * step
        sequence, launched = {"Sequence number": 100 * step + 11}, {"correlation": 600 + step}
        events.append(make_event("cpu_op", "aten::detach", MAIN, at, 1, **sequence))
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", MAIN, at + 0.5, 0.2, **launched))
        events.append(make_event("kernel", "k", STREAM, 1_003_900 + 10_000 * step, 7, **launched))
    names = [op.name for op in _read(tmp_path, events).ops]
    assert "fwd/002.detach" in names


def test_reentrant_checkpoints_keep_every_gradient(tmp_path: Path) -> None:
    """Backward ops inside another one stand for themselves; their consumer is the checkpoint's forward op."""
    profile = _read(tmp_path, reentrant_events())
    assert [gradient.size_bytes for gradient in profile.gradients] == [40, 800, 1200]
    assert profile.metadata["recorded_allreduces_match"] is True
    plain = _read(tmp_path, kineto_events())
    assert _busy_s(profile) == pytest.approx(_busy_s(plain) + 11e-6)
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    assert list(waits.values()).count("fwd/001.conv2d") == 2


def test_on_the_hosts_clock_streams_do_not_overlap(tmp_path: Path) -> None:
    """The host runs one op after another, whatever streams their kernels went to."""
    events = kineto_events()
    for event in events:
        if event["name"] == "k8":
            event["tid"] = 8
    profile = _read(tmp_path, events, clock="host")
    assert {op.stream for op in profile.ops} == {"compute"}
    assert profile.timing.compute_s == pytest.approx(_busy_s(profile))


def test_a_tied_parameter_is_told_by_what_the_engine_adds(tmp_path: Path) -> None:
    """After the convolution's gradients, another use's part of 300 elements; an activation's 777 are none."""
    events = kineto_events()
    for step in range(3):
        at = 1_004_490 + 10_000 * step
        for place, elements in enumerate((777, 300)):
            shape = {"Input Dims": [[elements], [elements]], "Input type": ["float", "float"]}
            events.append(make_event("cpu_op", "aten::add", AUTOGRAD, at + 4 * place, 3, **shape))
        node = {"Sequence number": 100 * step + 10}
        events.append(make_event("cpu_op", "ConvolutionBackward0", AUTOGRAD, at - 88, 80, **node))
    profile = _read(tmp_path, events)
    assert profile.metadata["tied_parameters"] == 1
    lines = "\n".join(report_lines(import_report(profile)))
    assert "gradients of parameters that several layers share: 1" in lines
    plain = _read(tmp_path, kineto_events())
    assert plain.metadata["tied_parameters"] == 0
    assert "tied" not in "\n".join(report_lines(import_report(plain)))
