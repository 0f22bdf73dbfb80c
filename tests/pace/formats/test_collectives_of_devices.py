"""Collectives that run on devices, under the names that NCCL and other libraries give them."""

from pathlib import Path

import pytest

from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.pace.formats.job_kinds import STEP_US, document_of
from tests.pace.formats.kineto_features import launched_events, make_event
from tests.pace.formats.traces import AUTOGRAD, MAIN, NCCL, Event, kineto_events, write_json

GATHER, SCATTER = "_allgather_base", "_reduce_scatter_base"


def _read(folder: Path, events: list[Event], workers: int = 2) -> Profile:
    document = document_of(events, workers=workers, backend="nccl")
    return read_kineto([write_json(folder / "trace.json", document)])


def _compute() -> list[Event]:
    sends = ("ncclDevKernel", "c10d::", "torch.distributed.ddp", "k16")  # and the copies of its buckets
    return [event for event in kineto_events() if not event["name"].startswith(sends)]


def _call(
    step: int,
    name: str,
    at_us: float,
    elements: int,
    *,
    op: str = "",
    workers: int = 2,
    thread: int = AUTOGRAD,
    stream: int = NCCL,
) -> list[Event]:
    """Return a collective as torch 2.4 and later record it: an op, a launch, and a kernel that says all."""
    at = 1_000_000 + STEP_US * step + at_us
    launch = {"correlation": 600_000 + 1000 * step + round(at_us) % 1000 + 10_000 * stream}
    said = {"Collective name": name, "In msg nelems": elements, "Group size": workers, "dtype": "Float"}
    return [
        make_event("cpu_op", f"c10d::{op or name}_", thread, at, 9),
        make_event("cuda_runtime", "cudaLaunchKernel", thread, at + 2, 3, **launch),
        make_event("kernel", "ncclDevKernel_Generic", stream, at + 6, 20, **launch, **said),
    ]


def _sharded() -> list[Event]:
    events = _compute()
    for step in range(3):
        events += _call(step, GATHER, 1050, 510, thread=MAIN)
        events += _call(step, SCATTER, 4370, 210)
        events += _call(step, SCATTER, 4600, 300)
    return events


def test_nccls_reduce_scatters_of_hsdp_are_found(tmp_path: Path) -> None:
    """NCCL calls them `_reduce_scatter_base`: on 2 x 2 ranks each shard is all-reduced by two workers."""
    events = _sharded()
    for step in range(3):
        at = 1_000_000 + STEP_US * step
        events.append(make_event("user_annotation", "FSDP::all_gather (layer)", MAIN, at + 1040, 25))
        events += _call(step, "allreduce", 4400, 105, stream=NCCL + 1)
        events += _call(step, "allreduce", 4640, 150, stream=NCCL + 1)
    profile = _read(tmp_path, events, 4)
    assert profile.metadata["job"]["kind"] == "HSDP"
    assert profile.workers == 2
    assert [gradient.size_bytes for gradient in profile.gradients] == [420, 600]
    assert profile.metadata["other_collectives"] == {"all_gather": 3, "reduce_scatter": 6}


def test_a_norm_beside_shards_does_not_make_it_an_all_reduce_job(tmp_path: Path) -> None:
    """An optimizer that holds a share of the state, as Megatron's, sums one number at the end."""
    events = _sharded()
    for step in range(3):
        events += _call(step, "allreduce", 7900, 1, thread=MAIN)
    with pytest.raises(FormatError, match=r"ZeRO \(likely: 3 all_gather, 3 all_reduce, 6 reduce_scatter"):
        _read(tmp_path, events)


@pytest.mark.parametrize("workers", [2, 4])
def test_reduce_scatters_of_activations_are_tensor_parallel(tmp_path: Path, workers: int) -> None:
    """Sequence parallelism sums activations with reduce-scatters, forward and backward."""
    events = _compute()
    for step in range(3):
        for at, thread in ((1310, MAIN), (1710, MAIN), (4150, AUTOGRAD), (4450, AUTOGRAD)):
            events += _call(step, SCATTER, at, 2048, thread=thread)
        events += _call(step, "allreduce", 4640, 510)
    with pytest.raises(
        FormatError, match=r"tensor parallel \(likely: 2 reduce-scatters a step in the forward pass"
    ):
        _read(tmp_path, events, workers)


def test_a_batch_of_sends_and_receives_is_pipeline_parallel(tmp_path: Path) -> None:
    """Its one kernel does not say what it is; the ops on the host do."""
    events = launched_events()
    for step in range(3):
        at = 1_000_000 + STEP_US * step
        launch = {"correlation": 850_000 + step}
        events += [
            make_event("cpu_op", "c10d::recv_", MAIN, at + 1400, 4),
            make_event("cpu_op", "c10d::send", MAIN, at + 1405, 4),
            make_event("cuda_runtime", "cudaLaunchKernel", MAIN, at + 1410, 3, **launch),
            make_event("kernel", "ncclDevKernel_SendRecv", NCCL, at + 1525, 30, **launch),
        ]
    with pytest.raises(FormatError, match=r"pipeline parallel \(certain: 6 sends and receives"):
        _read(tmp_path, events)


def test_a_barrier_sums_no_gradients(tmp_path: Path) -> None:
    """NCCL runs it as an all-reduce of a few bytes, and torch calls it `all_reduce_barrier`."""
    events = launched_events()
    for step in range(3):
        at = 1_000_000 + STEP_US * step
        launch = {"correlation": 850_000 + step}
        events += [
            make_event("user_annotation", "nccl:all_reduce_barrier", MAIN, at + 8100, 20),
            make_event("cuda_runtime", "cudaLaunchKernel", MAIN, at + 8105, 3, **launch),
            make_event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", NCCL, at + 8120, 30, **launch),
        ]
    profile = _read(tmp_path, events)
    assert profile.metadata["recorded_allreduces_match"] is True
    assert profile.metadata["other_collectives"] == {"barrier": 3}


def test_groups_of_different_sizes_are_warned_of(tmp_path: Path) -> None:
    """Gradients of experts are summed by fewer ranks than others, on other links."""
    events = launched_events()
    for event in events:
        if event.get("args", {}).get("In msg nelems") == 300:
            event["args"]["Group size"] = 4
    with pytest.warns(FormatWarning, match="process groups of 2 and 4 ranks.* One cost is assumed"):
        _read(tmp_path, events)


def test_a_kernel_whose_name_looks_like_nccl_is_compute(tmp_path: Path) -> None:
    """`asyncClear` has the letters of NCCL in it."""
    events, renamed = launched_events(), launched_events()
    for event in renamed:
        if event["name"] == "k13":  # the convolution's backward kernel
            event["name"] = "asyncClear"
    assert _read(tmp_path, renamed).ops == _read(tmp_path, events).ops


def test_oneccls_kernels_on_an_xpu_are_communication(tmp_path: Path) -> None:
    """They say nothing but their name; launches are `xpu_runtime`."""
    events = launched_events()
    for event in events:
        if event.get("cat") == "cuda_runtime":
            event["cat"] = "xpu_runtime"
        elif event["name"].startswith("ncclDevKernel"):
            event["name"] = "oneccl_allreduce_pcie"
            event["args"] = {"correlation": event["args"]["correlation"]}
        elif event.get("cat") == "kernel":
            event["args"].pop("External id", None)
    profile = _read(tmp_path, events)
    assert (
        profile.metadata["recorded_allreduces_why"] == "the trace does not say what the all-reduces carried"
    )
    assert profile.ops == _read(tmp_path, launched_events()).ops
