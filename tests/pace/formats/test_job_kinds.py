"""The kind of job that a trace is of: answered as what it is, or refused with what to do next."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.import_report import import_warnings
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from pace.whatif.headroom import headroom
from tests.pace.formats.job_kinds import (
    KINDS,
    REFUSED,
    accumulation_events,
    ddp_events,
    document_of,
    hook_events,
    hybrid_events,
    late_events,
    one_bucket_events,
    serial_events,
    single_events,
    tensor_parallel_events,
)
from tests.pace.formats.traces import ACCUMULATE, NCCL, Event, kineto_document, kineto_events, write_json


def _read(folder: Path, events: list[Event], workers: int = 2) -> Profile:
    return read_kineto([write_json(folder / "trace.json", document_of(events, workers=workers))])


@pytest.mark.parametrize(("kind", "sure", "make", "workers"), KINDS)
def test_a_kind_that_is_answered_is_named_and_replayed(
    tmp_path: Path, kind: str, sure: str, make: Callable[[], list[Event]], workers: int
) -> None:
    """Its recorded step comes out of the replay again."""
    found = _read(tmp_path, make(), workers).metadata
    assert (found["job"]["kind"], found["job"]["sure"]) == (kind, sure)
    assert found["replay"]["error"] == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(("kind", "make", "following"), REFUSED)
def test_a_kind_that_is_not_planned_is_named_with_what_to_do_next(
    tmp_path: Path, kind: str, make: Callable[[], list[Event]], following: str
) -> None:
    """No kind is taken for DDP."""
    with pytest.raises(FormatError) as refusal:
        _read(tmp_path, make())
    assert refusal.value.reason.startswith(f"{kind} (")
    assert following in refusal.value.reason


def test_passes_of_two_models_are_no_accumulation(tmp_path: Path) -> None:
    """As in a GAN: gradients of other shapes, each sent once a step; `no_sync` would separate ranks."""
    events = [
        event | {"args": event["args"] | {"Input Dims": [[1, *event["args"]["Input Dims"][0]]]}}
        if event["name"] == ACCUMULATE and (event["ts"] - 1_000_000) % 14_000 > 8_000
        else event
        for event in accumulation_events(no_sync=False)
    ]
    with pytest.warns(FormatWarning, match="3 gradients have no forward op"):  # those of the other model
        profile = _read(tmp_path, events)
    assert profile.metadata["job"]["kind"] == "DDP of several models"
    assert profile.metadata["job"]["why"].startswith("2 backward passes a step send different gradients")
    assert any("trains several models" in line for line in import_warnings(profile))
    assert headroom(profile).plain.bucket_cap_mb_list == ()  # one list is not for two models


def test_micro_batches_before_the_last_are_compute(tmp_path: Path) -> None:
    """Three gradients, not six, which the first micro-batch's forward ops need."""
    profile = _read(tmp_path, accumulation_events())
    assert [gradient.size_bytes for gradient in profile.gradients] == [40, 800, 1200]
    assert profile.metadata["recorded_allreduces_match"] is True
    waits = {name: op.name for op in profile.ops for name in op.waits_for}
    forward = [op.name for op in profile.ops if op.name.startswith("fwd/")]
    # The convolution's gradient is needed by its first use, long before the last micro-batch.
    assert waits[profile.gradients[-1].name] == "fwd/001.conv2d"
    assert sum(name.endswith("conv2d") for name in forward) == 2
    assert profile.metadata["step_wall_s"] == pytest.approx(14e-3, rel=0.01)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_hook_that_sends_half_halves_the_bytes(tmp_path: Path, dtype: str) -> None:
    """Every gradient counts with what is sent of it, in the type that was sent."""
    events = hook_events()
    for event in events:
        if event["name"] == "gloo:all_reduce" and dtype == "bfloat16":
            event["args"]["Input type"] = ["c10::BFloat16"]
    profile = _read(tmp_path, events)
    assert [(g.size_bytes, g.dtype) for g in profile.gradients] == [(20, dtype), (400, dtype), (600, dtype)]
    assert profile.metadata["recorded_allreduces_match"] is True


def test_a_single_all_reduce_of_something_else_is_no_hook(tmp_path: Path) -> None:
    """Of 2,040 bytes of gradients it carries 8: no type is so much smaller."""
    events = one_bucket_events()
    for event in events:
        if event["name"] == "gloo:all_reduce":
            event["args"]["Input Dims"] = [[2]]
    with pytest.warns(FormatWarning, match="carried 8 bytes, and the 3 gradients found have 2,040"):
        profile = _read(tmp_path, events)
    assert profile.metadata["job"]["kind"] == "DDP"
    assert [gradient.size_bytes for gradient in profile.gradients] == [40, 800, 1200]


def test_sparse_gradients_are_warned_of(tmp_path: Path) -> None:
    """Of the convolution's parameter only some rows were sent."""
    events = ddp_events()
    for event in events:
        if event["name"] == "gloo:all_reduce" and event["args"]["Input Dims"] == [[300]]:
            event["name"] = "gloo:sparse_all_reduce"
    with (
        pytest.warns(FormatWarning, match="sparse gradients count with all their rows"),
        pytest.warns(FormatWarning, match="carried 840 bytes, and the 3 gradients found have 2,040"),
    ):
        _read(tmp_path, events)


@pytest.mark.parametrize("sender", [None, "RegisterPostBackwardFunctionBackward"])
def test_replica_groups_share_shards(tmp_path: Path, sender: str | None) -> None:
    """HSDP on 2 x 2 ranks: two workers all-reduce what each reduce-scatter left, in two units.

    ``fully_shard`` sends them from an operator of its own.
    """
    profile = _read(tmp_path, hybrid_events(sender=sender), 4)
    assert profile.workers == 2
    assert [gradient.size_bytes for gradient in profile.gradients] == [420, 600]
    assert profile.metadata["other_collectives"] == {"all_gather": 3, "reduce_scatter": 6}


def test_sharding_with_tensor_parallelism_is_not_taken_for_hsdp(tmp_path: Path) -> None:
    """All-reduces in the forward pass sum activations, not shards of gradients."""
    events = hybrid_events() + [
        event | {"ts": event["ts"] + 30}
        for event in tensor_parallel_events()
        if event["name"] in ("gloo:all_reduce", "c10d::allreduce_")
    ]
    with pytest.raises(FormatError, match=r"FSDP2 \(certain: .*all_reduce"):
        _read(tmp_path, events, 4)


def test_an_outermost_unit_may_hold_what_was_ready_first(tmp_path: Path) -> None:
    """A third shard is sent although no further gradient became ready: it is one more unit."""
    profile = _read(tmp_path, hybrid_events(head_us=4720), 4)
    assert [gradient.size_bytes for gradient in profile.gradients] == [420, 600, 60]
    last, outermost = profile.gradients[1:]
    assert outermost.producer == last.producer
    with pytest.raises(FormatError, match="cannot be told from their order"):
        _read(tmp_path, hybrid_events(head_us=4400), 4)


def test_all_reduces_behind_the_backward_pass_are_replayed_one_after_another(tmp_path: Path) -> None:
    """Each waits for the one before, because the host does."""
    calls = _read(tmp_path, serial_events()).metadata["replay"]["calls"]
    assert [call["ready"] for call in calls] == [3, 3, 3]
    assert all(before["end_s"] <= after["start_s"] for before, after in pairwise(calls))


def test_late_ranks_are_recognized_from_one_rank(tmp_path: Path) -> None:
    """0.8 and 8 MB take 3.2 and 3.0 ms side by side: the network costs at most the difference."""
    profile = _read(tmp_path, late_events())
    replay = profile.metadata["replay"]
    assert replay["ranks_are_late"] is True
    assert replay["error"] == pytest.approx(0, abs=0.05)
    assert isinstance(profile.allreduce, AffineAllReduce)
    # 230 us more for the smaller one: 8 MB cost less than 0.3 ms.
    assert profile.allreduce.seconds_per_byte * 8e6 < 300e-6
    # Both start after 4.3 ms and end at 7.6 ms; the backward pass ends before 5 ms.
    assert 2.2e-3 < replay["late_s"] < 3.1e-3


def test_late_ranks_are_not_promised_a_gain(tmp_path: Path) -> None:
    """Two calls side by side wait for others: they do not follow one another, and no caps help.

    What 8 MB cost, 256 us, DDP cannot hide behind the op before the first layer: its loop waits first.
    """
    made = headroom(_read(tmp_path, late_events()))
    assert made.recorded is not None
    assert made.recorded.replayed_s == pytest.approx(0.01, rel=0.02)
    assert made.plain.ddp_best_caps_s == pytest.approx(made.recorded.replayed_s, rel=0.01)
    assert not any("DistributedDataParallel" in line for line in made.advice)
    assert any("wait for late ranks" in line for line in made.advice)


@pytest.mark.parametrize(
    ("waits", "samples"), [(210, ((840, 90e-6), (1200, 90e-6))), (300, ((840, 70e-6), (1200, 100e-6)))]
)
def test_a_call_that_waited_costs_no_more_than_others_show(
    tmp_path: Path, waits: int, samples: tuple[tuple[float, float], ...]
) -> None:
    """Of 70 and 90 us for 840 and 1,200 bytes, one took 1.5 ms: no longer than a larger one, nor per byte."""
    events = ddp_events()
    for event in events:
        if event["name"] == "gloo:all_reduce":
            own = event["args"]["Input Dims"][0][0]
            event["dur"] = 1500 if own == waits else 70 if own == 210 else 90
            event["ts"] += 0 if own == waits else 2000  # apart, so that none shares the network
    found = _read(tmp_path, events).allreduce.model_dump()["samples"]
    assert found == tuple((size, pytest.approx(seconds)) for size, seconds in samples)


def test_streams_of_a_device_run_side_by_side(tmp_path: Path) -> None:
    """Two communicators: calls from 4,360 to 6,360 and 4,600 to 6,300 us are not queued in the replay."""
    events = kineto_events()
    for event in events:
        if event["name"].startswith("ncclDevKernel"):
            is_second = event["args"]["In msg nelems"] == 300
            event["dur"] = 1700 if is_second else 2000
            event["tid"] = NCCL + is_second
    profile = read_kineto([write_json(tmp_path / "trace.json", kineto_document(events))])
    first, second = profile.metadata["replay"]["calls"]
    assert (first["lane"], second["lane"]) == (str(NCCL), str(NCCL + 1))
    assert first["start_s"] < second["start_s"] < first["end_s"]
    # The time that they shared counts half for each, and the smaller one takes no longer: 240 + 850 + 60 us.
    (_, one), (_, other) = profile.allreduce.model_dump()["samples"]
    assert one == other == pytest.approx(850e-6)


def test_one_process_on_a_network_that_is_given(tmp_path: Path) -> None:
    """A trace of one GPU: `headroom` takes the number of workers and the cost."""
    events = [event for event in kineto_events() if not event["name"].startswith(("ncclDevKernel", "c10d::"))]
    document = kineto_document(events, distributedInfo={"rank": 0, "world_size": 1})
    trace = write_json(tmp_path / "trace.json", document)
    cost = tmp_path / "cost.json"
    cost.write_bytes(json.dumps({"kind": "affine", "latency_s": 1e-3, "seconds_per_byte": 0.0}).encode())
    run = CliRunner()
    for given in (["--bandwidth-gbps", "10", "--latency-s", "1e-3"], ["--cost", str(cost)]):
        answer = run.invoke(app, ["headroom", str(trace), "--workers", "4", *given])
        assert answer.exit_code == 0, answer.output
        assert answer.stdout.startswith("one process (certain")
    refused = run.invoke(app, ["headroom", str(trace)])
    assert refused.exit_code == 1
    assert all(option in refused.output for option in ("--workers", "--cost", "--bandwidth-gbps"))


def test_a_process_that_trains_alone_needs_a_network_to_be_asked_about(tmp_path: Path) -> None:
    """The refusal names the options."""
    with pytest.raises(FormatError, match=r"one process .*--workers and the cost .*--bandwidth-gbps"):
        _read(tmp_path, single_events())


def test_ranks_whose_collectives_are_not_recorded_are_to_be_recorded_again(tmp_path: Path) -> None:
    """As in a job that PACE trains; its user has several ranks, and knows their network."""
    paths = [
        write_json(tmp_path / f"{rank}.json", document_of(single_events(), rank=rank)) for rank in range(2)
    ]
    with pytest.raises(FormatError, match="record the job under DDP, without PACE"):
        read_kineto(paths)
