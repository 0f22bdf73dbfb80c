"""Law 7 and compression: auto measures, agrees and keeps one mode; half precision stays in step."""

import itertools
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pace.runtime.ddp
import pace.runtime.fsdp
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Case,
    backward,
    difference,
    equal_bits,
    train_cases,
    train_plainly,
    trainable,
    wrap,
)


def _train_auto(rank: int, _size: int, transport: str, folder: str, case: Case) -> Any:
    model = build(case.model)
    optimizer = wrap(transport, OPTIMIZERS[case.optimizer](trainable(model)), model, mode="auto")
    for batch in batches(case.model, case.steps, rank):
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    report = optimizer.report()
    optimizer.write_timeline(Path(folder, f"{rank}.json"))
    trained = weights(model)
    optimizer.close()
    return trained, report


def test_auto_tries_all_modes_and_all_ranks_keep_the_same(transport: str, tmp_path: Path) -> None:
    """The report holds what was measured; the weights do not notice; the timeline is well formed."""
    case = Case(steps=26)
    ranks = run_ranks(_train_auto, 2, transport, str(tmp_path), case, backend=cast("Backend", transport))
    (first, report), (second, other) = ranks
    assert report.trial_s == other.trial_s
    assert set(report.trial_s) == {"plain", "barrier", "overlap"}
    assert (report.mode, report.source) == (other.mode, other.source)
    assert report.mode == min(report.trial_s, key=lambda name: report.trial_s[name])
    assert (report.source == "plain") == (report.mode == "plain")
    assert equal_bits(first, second)
    assert difference(first, train_plainly(case, 2)) <= 1e-5
    assert report.rounds == 26
    sizes = sum(group.size_bytes for group in report.groups)
    assert sum(segment.size_bytes for segment in report.segments) == sizes
    for group in report.groups:
        assert 0 <= group.submitted_s <= group.sent_s <= group.done_s
    _check_timeline(json.loads((tmp_path / "0.json").read_text()), len(report.segments))


class _Unsorted(nn.Module):
    """Layers that are used in another order than they are registered in, of 260 kB each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(9))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean of the last layer's output."""
        for at in (4, 7, 0, 8, 2, 6, 1, 5, 3):
            rows = self.layers[at](rows).relu()
        return rows.mean()


def _train_unsorted(_rank: int, _size: int, way: str) -> tuple[list[list[int]], str]:
    caps: dict[str, Any] = {"bucket_cap_mb": 1} if way == "small" else {}
    torch.manual_seed(0)
    judge = DistributedDataParallel(_Unsorted(), **caps)
    model: Any = _Unsorted()
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    if way == "units":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        for layer in (*model.layers, model):
            fully_shard(layer, mesh=mesh)
    elif way != "wrapper":
        model = DistributedDataParallel(model, **caps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "wrapper":
        handle = optimizer = wrap("gloo", optimizer, model, mode="auto")
    else:
        attach = pace.runtime.fsdp.attach if way == "units" else pace.runtime.ddp.attach
        handle = attach(model, optimizer, mode="auto")
    _train(model, optimizer, 2)
    mine = [[numbers[name] for name in group.gradients] for group in handle.report().groups]
    handle.close()
    _train(judge, torch.optim.SGD(judge.parameters(), lr=0.1), 3)  # it states its buckets in the third
    logged = judge._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch does not type it
    return mine, logged["rebuilt_per_bucket_param_indices"]


def _train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 256)).backward()
        optimizer.step()


@pytest.mark.parametrize("way", ["wrapper", "default", "small"])
def test_plain_operation_has_the_buckets_that_ddp_has_after_its_first_iteration(way: str) -> None:
    """Both see in the first step when gradients become ready; the order of registration says nothing."""
    ((mine, ddp), other) = run_ranks(_train_unsorted, 2, way, backend="gloo")
    assert (mine, ddp) == other
    assert len(mine) > 1
    assert ", ".join(" ".join(map(str, bucket)) for bucket in mine) == ddp


def _local_groups(_rank: int, _size: int) -> set[tuple[str, ...]]:
    model = _Unsorted()
    with wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), model, mode="auto") as optimizer:
        found = set()
        for _ in range(20):
            _train(model, optimizer, 1)
            report = optimizer.report()
            if report.source == "local":
                found.add(tuple(name for group in report.groups for name in group.gradients))
    return found


def test_plans_without_a_schedule_are_tried_in_the_order_of_readiness() -> None:
    """As plain operation: in the order of registration, ready gradients would wait for others."""
    first, second = run_ranks(_local_groups, 2, backend="gloo")
    assert first == second
    (names,) = first
    layers = [name.split(".")[1] for name in names]
    assert layers == [number for number in "351628074" for _ in range(2)]


def _train_after_rank_0(rank: int, _size: int) -> tuple[set[str], dict[str, Any]]:
    torch.manual_seed(0)
    model = _Unsorted()
    optimizer = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.01), model, mode="auto")
    if rank == 0:
        optimizer.step()
    _train(model, optimizer, 15 - (rank == 0))
    tried = set(optimizer.report().trial_s)
    optimizer.close()
    return tried, weights(model)


def test_ranks_agree_on_buckets_of_which_rank_0_has_seen_nothing() -> None:
    """It has no batch in the first step, so nobody knows in which order gradients become ready."""
    (tried, first), (others, second) = run_ranks(_train_after_rank_0, 2, backend="gloo")
    assert tried == others == {"plain", "barrier", "overlap"}
    assert equal_bits(first, second)


def test_plain_operation_sends_units_as_fully_shard_does() -> None:
    """One all-reduce for each unit, the last layer's first."""
    ((mine, _), other) = run_ranks(_train_unsorted, 2, "units", backend="gloo")
    assert mine == other[0]
    assert [sorted(bucket) for bucket in mine] == [[2 * at, 2 * at + 1] for at in (3, 5, 1, 6, 2, 8, 0, 7, 4)]


def _check_timeline(trace: dict[str, Any], num_segments: int) -> None:
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == num_segments
    for lane in {event["tid"] for event in slices}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == lane)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in itertools.pairwise(own))
    waiting = [event["args"]["bytes"] for event in trace["traceEvents"] if event["ph"] == "C"]
    assert waiting[-1] == 0
    assert min(waiting) >= 0


def test_half_precision_rounds_alike_on_all_ranks(transport: str) -> None:
    """Compressed training stays near plain training, bit-identical between ranks, and does round."""
    wires = ["fp16"] if transport == "horovod" else ["fp16", "bf16"]  # Horovod sums no bfloat16
    cases = [Case(steps=8, options={"compression": wire}) for wire in wires]
    ranks = run_ranks(train_cases, 2, transport, cases, backend=cast("Backend", transport))
    plain = train_plainly(cases[0], 2)
    for case, first, second in zip(cases, *ranks, strict=True):
        assert equal_bits(first, second), case
        near = max(float(np.abs(first[name] - plain[name]).max()) for name in plain)
        assert 1e-7 < near < 2e-3, case
