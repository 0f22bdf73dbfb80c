"""Collectives that no schedule moves: found in traces, kept as ops on streams of their own."""

from pathlib import Path

import pytest

from pace.documents.profile import Op, Profile
from pace.formats.import_report import import_report, report_lines
from pace.formats.kineto import read_kineto
from pace.formats.training_step import FixedOps, StepCollective, StepOp, TrainingStep
from tests.pace.formats.kineto_features import (
    all_to_all_events,
    gloo_all_to_all_events,
    launched_events,
    make_event,
    statistics_events,
)
from tests.pace.formats.traces import MAIN, NCCL, STREAM, Event, kineto_document, kineto_events, write_json


def _read(folder: Path, events: list[Event], **options: object) -> Profile:
    path = write_json(folder / "rank0.json", kineto_document(events))
    return read_kineto([path], **options)  # type: ignore[arg-type]  # only clocks are passed


def _fixed(profile: Profile) -> list[Op]:
    return [op for op in profile.ops if op.kind == "communication"]


def _followers(profile: Profile, name: str) -> list[str]:
    return [op.name for op in profile.ops if name in op.deps]


def test_an_all_to_all_keeps_its_place_and_its_time(tmp_path: Path) -> None:
    """From the convolution's end, at 1,520, to its own, at 1,830."""
    profile = _read(tmp_path, all_to_all_events())
    (call,) = _fixed(profile)
    assert call.name == "fwd/collective 00.all_to_all"
    assert call.stream == "collectives"
    assert call.deps == ("fwd/001.conv2d",)
    assert call.duration_s == pytest.approx(310e-6)
    assert _followers(profile, call.name) == ["fwd/002.linear"]
    busy = sum(op.duration_s for op in profile.ops)
    # A step takes 10,000 us: each of them is compute, this call, or waiting for all-reduces.
    assert busy + profile.metadata["exposed_communication_s"] == pytest.approx(10_000e-6)
    assert profile.metadata["fixed_communication_s"] == pytest.approx(305e-6)
    assert profile.metadata["replay"]["error"] == pytest.approx(0.0, abs=0.02)
    assert profile.metadata["other_collectives"] == {"all_to_all": 3}
    assert any("kept as communication" in line for line in report_lines(import_report(profile)))


def test_on_the_devices_clock_a_collective_lasts_as_long_as_its_kernel(tmp_path: Path) -> None:
    """And ops as long as theirs."""
    profile = _read(tmp_path, all_to_all_events(), clock="device")
    (call,) = _fixed(profile)
    assert call.duration_s == pytest.approx(305e-6)
    assert _followers(profile, call.name) == ["fwd/002.linear"]


def test_a_kernel_launched_before_a_collective_was_issued_does_not_follow_it(tmp_path: Path) -> None:
    """Here the linear layer's kernel is launched first: the loss is the first that can have waited."""
    events = all_to_all_events()
    for event in events:
        if event["name"] in ("nccl:all_to_all", "cudaLaunchKernel") and event["tid"] == MAIN:
            since = (event["ts"] - 1_000_000) % 10_000
            if 1400 <= since <= 1405:
                event["ts"] += 180
    profile = _read(tmp_path, events)
    (call,) = _fixed(profile)
    assert _followers(profile, call.name) == ["fwd/003.mse_loss"]


def test_a_collective_beside_compute_shortens_nothing(tmp_path: Path) -> None:
    """It runs while the convolution does, and nothing waits: 60 us on its own stream."""
    events = launched_events()
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        launch = {"correlation": 850_000 + step}
        events += [
            make_event("user_annotation", "nccl:_all_gather_base", MAIN, origin + 1090, 8),
            make_event("cuda_runtime", "cudaLaunchKernel", MAIN, origin + 1092, 3, **launch),
            make_event("kernel", "ncclKernel_AllGather", NCCL, origin + 1200, 60, **launch),
        ]
    profile, without = _read(tmp_path, events), _read(tmp_path, launched_events())
    (call,) = _fixed(profile)
    assert call.name.endswith(".all_gather")
    assert call.duration_s == pytest.approx(60e-6)
    assert profile.timing.compute_s == pytest.approx(without.timing.compute_s)


def test_waiting_for_gloo_counts_for_the_collective(tmp_path: Path) -> None:
    """Idle from 1,415 to 1,490 of the convolution's 1,100 to 1,500: that much counts for the all-to-all."""
    profile = _read(tmp_path, gloo_all_to_all_events())
    (call,) = _fixed(profile)
    conv = next(op for op in profile.ops if op.name == "fwd/001.conv2d")
    without = _read(tmp_path, kineto_events(device=False)).ops[5]
    assert without.name == conv.name
    assert conv.duration_s == pytest.approx(without.duration_s - 75e-6)
    assert call.duration_s == pytest.approx(75e-6)
    assert call.deps == (conv.name,)
    assert _followers(profile, call.name) == ["fwd/002.linear"]
    assert profile.metadata["fixed_communication_s"] == pytest.approx(75e-6)


@pytest.mark.parametrize("device", [False, True])
def test_all_reduces_of_a_layers_statistics_are_no_gradients(tmp_path: Path, device: bool) -> None:
    """Two a step keep their places; the buckets of gradients are those of the same training without them."""
    without = _read(tmp_path, launched_events() if device else kineto_events(device=False))
    profile = _read(tmp_path, statistics_events(device=device))
    sent, expected = (
        [call["size_bytes"] for call in made.metadata["recorded_allreduces"]] for made in (profile, without)
    )
    assert sent == expected == [840, 1200]
    assert profile.metadata["recorded_allreduces_match"] is True
    assert profile.metadata["other_collectives"] == {"all_reduce_of_a_layer": 6}
    assert len(_fixed(profile)) == 2
    assert profile.allreduce == without.allreduce


def test_buffers_broadcast_before_the_first_op_are_waited_for(tmp_path: Path) -> None:
    """As DDP does where there are running statistics: 300 of the 1,000 us before the first op are its."""
    events = kineto_events(device=False)
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        events += [
            make_event("cpu_op", "c10d::broadcast_", MAIN, origin + 380, 20),
            make_event("user_annotation", "gloo:broadcast", 33, origin + 390, 310),
        ]
    profile = _read(tmp_path, events)
    (call,) = _fixed(profile)
    first = next(op for op in profile.ops if op.name == "fwd/000.add_")
    without = next(op for op in _read(tmp_path, kineto_events(device=False)).ops if op.name == first.name)
    assert call.duration_s == pytest.approx(300e-6)
    assert first.duration_s == pytest.approx(without.duration_s - 300e-6)
    assert _followers(profile, call.name) == [first.name]


def _step(*collectives: StepCollective) -> TrainingStep:
    """Return a step of three backward ops of 1 s and three forward ops of 2 s."""
    return TrainingStep(
        forward=tuple(StepOp(name=f"f{place}", duration_s=2.0) for place in range(3)),
        backward=tuple(StepOp(name=f"b{place}", duration_s=1.0) for place in range(3)),
        gradients=(),
        update_s=0.0,
        collectives=collectives,
    )


def _call(**fields: object) -> StepCollective:
    given = {"name": "all_to_all", "of_forward": False, "lane": "collectives", "duration_s": 0.5}
    return StepCollective(**(given | fields))  # type: ignore[arg-type]  # fields of the class


def _durations(*collectives: StepCollective) -> list[float]:
    step = _step(*collectives)
    fixed = FixedOps(step, [0.0] * 3)
    return [op.duration_s for op in (*fixed.ops(of_forward=False), *fixed.ops(of_forward=True))]


def test_a_collective_lasts_until_the_waiting_it_explains_is_over() -> None:
    """Issued behind b0, which ends at 1; b2 could start at 2 and waited 0.75 s: it ends at 2.75."""
    assert _durations(_call(after=0, before=(False, 2), waited_s=0.75)) == [1.75]


def test_a_hidden_collective_ends_before_its_follower() -> None:
    """Issued behind b0, and b1 waited for nothing: of its 0.5 s none fits between."""
    assert _durations(_call(after=0, before=(False, 1), waited_s=0.0)) == [0.0]
    assert _durations(_call(after=0, before=(False, 2), waited_s=0.0)) == [0.5]


def test_calls_of_one_lane_follow_one_another() -> None:
    """The first ends at 1.25, and the second, for which f0 waits until 3.5, starts then."""
    first = _call(after=0, before=(False, 1), waited_s=0.25)
    second = _call(after=0, before=(True, 0), waited_s=0.5)
    # b1 waits 0.25, so that backward ends at 3.25 and f0 starts at 3.75.
    assert _durations(first, second) == [0.25, 2.5]


def test_a_collective_of_the_update_is_followed_by_the_forward_pass() -> None:
    """Behind b2, at 3, until f0 has waited 1 s."""
    assert _durations(_call(after=2, before=(True, 0), waited_s=1.0)) == [1.0]


def test_a_collective_at_the_end_is_waited_for_by_the_window() -> None:
    """Behind f2, at 9; the next backward pass waited 0.25 s for it."""
    assert _durations(_call(of_forward=True, after=2, before=None, waited_s=0.25)) == [0.25]


def test_an_unrelated_stream_of_the_device_is_compute(tmp_path: Path) -> None:
    """No profile without other collectives has a second stream or another kind of op."""
    profile = _read(tmp_path, launched_events())
    assert {op.stream for op in profile.ops} == {"compute"}
    assert not _fixed(profile)
    assert STREAM != NCCL
