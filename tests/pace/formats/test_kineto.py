"""Kineto traces, alone and joined with execution traces, worked out by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.pace.formats.traces import (
    SIZES,
    execution_trace_document,
    kineto_document,
    kineto_events,
    write_json,
)


def _read(folder: Path, *events: list[dict[str, Any]], **options: Any) -> Profile:
    paths = []
    for rank, rank_events in enumerate(events):
        told = {"backend": "nccl", "rank": rank, "world_size": 2}
        document = kineto_document(list(rank_events), distributedInfo=told)
        paths.append(write_json(folder / f"rank{rank}.json", document))
    return read_kineto(paths, **({"clock": "device"} | options))


def _durations(profile: Profile) -> dict[str, float]:
    return {op.name: round(op.duration_s * 1e6, 3) for op in profile.ops}


def test_kernels_are_given_to_the_ops_that_launched_them(tmp_path: Path) -> None:
    """By External id or by correlation; accumulating a gradient counts for its producer.

    The update's 230 us are divided by bytes: 1,200 of 2,040 to the convolution, 840 to the linear layer.
    """
    profile = _read(tmp_path, kineto_events())
    assert _durations(profile) == {
        "bwd/000.MseLossBackward0": 30,
        "bwd/001.AddmmBackward0": 502,
        "bwd/002.TBackward0": 3,
        "bwd/003.ConvolutionBackward0": 904,
        "fwd/000.add_": 5,
        "fwd/001.conv2d": round(400 + 230 * 1200 / 2040, 3),
        "fwd/002.linear": round(300 + 230 * 840 / 2040, 3),
        "fwd/003.mse_loss": 20,
    }
    assert profile.metadata["compute_s"] == pytest.approx(profile.timing.compute_s)
    assert profile.metadata["steps"] == 3
    assert profile.workers == 2


def test_gradients_have_the_producer_and_consumer_that_autograd_recorded(tmp_path: Path) -> None:
    """The op before the accumulation produces it; the same sequence number in the forward pass needs it.

    `aten::add_` carries the convolution's number too, but records nothing: the last to carry it counts.
    """
    profile = _read(tmp_path, kineto_events())
    assert [(g.name, g.size_bytes, g.dtype, g.producer) for g in profile.gradients] == [
        ("002.linear/0", 40, "float32", "bwd/001.AddmmBackward0"),
        ("002.linear/1", 800, "float32", "bwd/002.TBackward0"),
        ("001.conv2d/0", 1200, "float32", "bwd/003.ConvolutionBackward0"),
    ]
    waits = {op.name: op.waits_for for op in profile.ops if op.waits_for}
    assert waits == {
        "fwd/001.conv2d": ("001.conv2d/0",),
        "fwd/002.linear": ("002.linear/0", "002.linear/1"),
    }


def test_collectives_become_the_cost_and_the_groups_that_were_sent(tmp_path: Path) -> None:
    """One rank: the shortest of each size's calls; the recorded groups are replayed from ready order."""
    profile = _read(tmp_path, kineto_events())
    samples = dict(profile.allreduce.model_dump()["samples"])
    assert samples == pytest.approx({840: 70e-6, 1200: 90e-6})
    assert profile.metadata["recorded_allreduces"] == [
        {"gradients": ["002.linear/0", "002.linear/1"], "size_bytes": 840},
        {"gradients": ["001.conv2d/0"], "size_bytes": 1200},
    ]
    assert profile.metadata["recorded_allreduces_match"] is True


def test_with_several_ranks_waiting_is_left_out(tmp_path: Path) -> None:
    """Each call counts with the rank that waited least, each size with its median over the steps."""
    profile = _read(tmp_path, kineto_events(waiting_us=500.0), kineto_events())
    samples = dict(profile.allreduce.model_dump()["samples"])
    assert samples == pytest.approx({840: 71e-6, 1200: 91e-6})
    assert profile.metadata["ranks"] == 2


@pytest.mark.parametrize("old", [False, True])
def test_an_execution_trace_gives_the_sizes(tmp_path: Path, old: bool) -> None:
    """Of another run, joined by order; schemas 1.0 and 1.1 hold the same in different places."""
    shapes = write_json(tmp_path / "et.json", execution_trace_document(old=old))
    profile = _read(tmp_path, kineto_events(shapes=False), execution_trace=shapes)
    assert tuple(gradient.size_bytes for gradient in profile.gradients) == SIZES
    assert profile.metadata["tool"] == "Kineto with execution trace"


def test_a_trace_recorded_together_is_joined_by_record_function_id(tmp_path: Path) -> None:
    """The ids decide, not the order of the nodes."""
    document = execution_trace_document(first_record=0)
    document["nodes"].reverse()
    shapes = write_json(tmp_path / "et.json", document)
    profile = _read(tmp_path, kineto_events(shapes=False), execution_trace=shapes)
    assert tuple(gradient.size_bytes for gradient in profile.gradients) == SIZES


def test_without_sizes_the_trace_is_refused(tmp_path: Path) -> None:
    """And the message says what would give them."""
    with pytest.raises(FormatError, match=r"sizes of 3 of 3 gradients were not recorded.*record_shapes=True"):
        _read(tmp_path, kineto_events(shapes=False))


def test_an_execution_trace_of_another_model_is_refused(tmp_path: Path) -> None:
    """Seven gradients cannot be three a step; sizes that change from step to step cannot be joined."""
    document = execution_trace_document()
    document["nodes"].append(document["nodes"][1] | {"id": 77})
    shapes = write_json(tmp_path / "et.json", document)
    with pytest.raises(FormatError, match="10 gradients in 3 steps; the Kineto trace has 3 a step"):
        _read(tmp_path, kineto_events(shapes=False), execution_trace=shapes)
    document = execution_trace_document()
    document["nodes"][1]["inputs"]["shapes"] = [[11]]
    shapes = write_json(tmp_path / "et.json", document)
    with pytest.raises(FormatError, match="other sizes in another step"):
        _read(tmp_path, kineto_events(shapes=False), execution_trace=shapes)


def test_on_the_hosts_clock_an_op_lasts_until_the_next_one_starts(tmp_path: Path) -> None:
    """CPU training: gaps between ops are Python's and count; issuing an all-reduce does not.

    What the host does after the update and before the next step's first op counts for that, and what it does
    before the backward pass for the last op of the forward pass. The last op of the backward pass ends with
    itself: what follows is waiting for the network.
    """
    profile = _read(tmp_path, kineto_events(device=False), clock="host")
    assert profile.metadata["clock"] == "host"
    durations = _durations(profile)
    assert durations["bwd/000.MseLossBackward0"] == 100
    assert durations["bwd/001.AddmmBackward0"] == 160
    assert durations["bwd/002.TBackward0"] == 140
    assert durations["bwd/003.ConvolutionBackward0"] == 200
    assert durations["fwd/000.add_"] == 1840 + 1000 + 100
    assert durations["fwd/003.mse_loss"] == 100 + 2100
    assert durations["fwd/001.conv2d"] == round(400 + 60 * 1200 / 2040, 3)


def test_disturbances_that_hit_another_op_each_time_are_not_forgotten(tmp_path: Path) -> None:
    """Every step has one op of the backward pass 1,000 us longer: no op's median shows it, the pass must.

    The medians add up to 100 + 160 + 140 + 200 = 600 us, each step's pass to 1,600.
    """
    events = kineto_events(device=False)
    hit = {0: "AddmmBackward0", 1: "TBackward0", 2: "ConvolutionBackward0"}
    for event in events:
        step = int((event.get("ts", 0) - 1_000_000) // 10_000)
        within = event.get("ts", 0) - 1_000_000 - 10_000 * step
        late = {"AddmmBackward0": 4205, "TBackward0": 4270, "ConvolutionBackward0": 4510}.get(
            hit.get(step, ""), 0
        )
        if late and late <= within < 7000:
            event["ts"] += 1000
    profile = _read(tmp_path, events, clock="host")
    backward = [op.duration_s for op in profile.ops if op.name.startswith("bwd/")]
    assert sum(backward) == pytest.approx(1600e-6)
    assert backward[0] == pytest.approx(1600e-6 * 100 / 600)


def test_gloo_calls_are_taken_from_their_threads(tmp_path: Path) -> None:
    """Annotations of Gloo's threads serve where there are no kernels."""
    profile = _read(tmp_path, kineto_events(device=False), clock="host")
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 70e-6, 1200: 90e-6})


@pytest.mark.parametrize("annotated", [False, True])
def test_sizes_that_were_not_recorded_are_inferred(tmp_path: Path, annotated: bool) -> None:
    """Older traces do not say what NCCL sent: each call carried what was ready since the one before.

    NCCL's kernels are told by their names, so they are still no compute. Where an all-reduce is issued is
    told by the operator, or in still older traces by the annotation inside it.
    """
    events = kineto_events(sized=False)
    if annotated:
        for event in events:
            if event["name"] == "c10d::allreduce_":
                event.update(cat="user_annotation", name="nccl:all_reduce")
    profile = _read(tmp_path, events)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 70e-6, 1200: 90e-6})
    assert profile.metadata["recorded_allreduces_match"] is None
    assert profile.timing.compute_s == pytest.approx(2394e-6)


def test_calls_of_unknown_size_need_a_cost(tmp_path: Path) -> None:
    """A call that nothing in the trace accounts for has no size; a cost of the caller's replaces it."""
    events = [event for event in kineto_events(sized=False) if event["name"] != "c10d::allreduce_"]
    with pytest.raises(FormatError, match="no all-reduce of known size was recorded"):
        _read(tmp_path, events)
    cost = AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-9)
    profile = _read(tmp_path, events, allreduce=cost)
    assert profile.allreduce == cost
    assert profile.metadata["recorded_allreduces"] == []


def test_steps_that_ran_other_ops_are_left_out_with_a_warning(tmp_path: Path) -> None:
    """A step with an evaluation in it does not blur the others."""
    events = kineto_events()
    extra = next(event for event in events if event["name"] == "aten::mse_loss")
    events.append(extra | {"name": "aten::argmax", "ts": extra["ts"] + 150, "args": {}})
    with pytest.warns(FormatWarning, match="1 of 3 steps ran other operators"):
        profile = _read(tmp_path, events)
    assert profile.metadata["steps"] == 2


def test_without_profiler_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    """A trace of a single step, recorded without a schedule."""
    events = [e for e in kineto_events(steps=1) if not e["name"].startswith("ProfilerStep")]
    profile = _read(tmp_path, events)
    assert profile.metadata["steps"] == 1
    assert profile.timing.compute_s == pytest.approx(2394e-6)


def test_ops_on_a_second_stream_wait_for_what_was_seen_to_end(tmp_path: Path) -> None:
    """Where a trace has two compute streams, the observed order between them is kept."""
    events = kineto_events()
    for event in events:
        if event["name"] == "k8":  # the kernel of AddmmBackward0
            event["tid"] = 8
    profile = _read(tmp_path, events)
    ops = {op.name: op for op in profile.ops}
    assert ops["bwd/001.AddmmBackward0"].stream == "stream 8"
    assert ops["bwd/001.AddmmBackward0"].deps == ("bwd/000.MseLossBackward0",)
    assert ops["bwd/003.ConvolutionBackward0"].deps == ("bwd/001.AddmmBackward0",)


def test_modules_name_the_ops(tmp_path: Path) -> None:
    """With modules recorded, the innermost one around an op is part of its name."""
    events = kineto_events(steps=1)
    common = {"ph": "X", "cat": "python_function", "pid": 100, "tid": 1, "args": {}}
    events += [
        common | {"name": "nn.Module: Net_0", "ts": 1_001_000, "dur": 900},
        common | {"name": "nn.Module: Conv2d_0", "ts": 1_001_090, "dur": 300},
    ]
    names = [op.name for op in _read(tmp_path, events).ops]
    assert "fwd/001.Conv2d_0.conv2d" in names
    assert "fwd/002.Net_0.linear" in names


def test_kernels_without_an_op_are_never_silently_dropped(tmp_path: Path) -> None:
    """A little is left out with a warning, much is refused."""
    events = kineto_events()
    stray = {"ph": "X", "cat": "kernel", "name": "stray", "pid": 0, "tid": 7, "ts": 1_003_000, "args": {}}
    with pytest.warns(FormatWarning, match="2.. % of the device's time|2..% of the device's time"):
        _read(tmp_path, [*events, stray | {"dur": 200}])
    with pytest.raises(FormatError, match="of the device's time belongs to no operator"):
        _read(tmp_path, [*events, stray | {"dur": 5000}])


def test_kernels_launched_between_operators_are_told_from_missing_ids(tmp_path: Path) -> None:
    """Extensions, and Triton kernels that Python calls itself, make no operators."""
    events = kineto_events()
    launched = next(event for event in events if event["name"] == "cudaLaunchKernel")
    launch = launched | {"ts": 1_000_001, "dur": 1, "args": {"correlation": 987}}
    kernel = {"ph": "X", "cat": "kernel", "name": "own", "pid": 0, "tid": 7, "ts": 1_003_000, "dur": 5000}
    events += [launch, kernel | {"args": {"correlation": 987}}]
    with pytest.raises(FormatError, match=r"it was launched between operators.*torch\.library\.custom_op"):
        _read(tmp_path, events)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"traceEvents": []}, "no operators"),
        ({"somethingElse": 1}, "no operators"),
        ({"traceEvents": [3]}, r"traceEvents\[0\]: expected an object"),
        (
            kineto_document([e | {"dur": "long"} for e in kineto_events()]),
            r"traceEvents\[1\]: dur is 'long'",
        ),
        (
            kineto_document([e for e in kineto_events() if "Backward" not in e["name"]]),
            "a sampled trace .* backward ops that produced them are missing",
        ),
        (
            kineto_document([e for e in kineto_events() if "evaluate" not in e["name"]]),
            "a sampled trace",
        ),
    ],
)
def test_what_is_no_training_trace_is_refused(tmp_path: Path, document: object, reason: str) -> None:
    """The error names the file, the event and the reason."""
    path = write_json(tmp_path / "trace.json", document)
    with pytest.raises(FormatError, match=reason) as refusal:
        read_kineto([path])
    assert str(path) in str(refusal.value)


def test_gzip_is_seen_through_and_damage_refused(tmp_path: Path) -> None:
    """A trace that is cut off is no trace: half an iteration must not pass for one."""
    text = json.dumps(kineto_document(kineto_events())).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text))
    assert len(read_kineto([path]).gradients) == 3
    path.write_bytes(gzip.compress(text)[:-40])
    with pytest.raises(FormatError, match="gzip stream is damaged"):
        read_kineto([path])
    path.write_bytes(text[:-40])
    with pytest.raises(FormatError, match=r"trace.json, near byte \d+: the file is cut off, or empty"):
        read_kineto([path])
    path.write_bytes(text.decode().encode("utf-16"))
    with pytest.raises(FormatError, match=r"trace.json: this is a text in UTF-16: save it in UTF-8"):
        read_kineto([path])
