"""Loops as strangers write them, under the runtime: what the flight recorder saw of them cannot hang."""

from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d

from pace import check_order
from tests.runtime.launch import run_ranks
from tests.runtime.loops.loop_run import run_loop
from tests.runtime.loops.published_gans import dcgan, wasserstein
from tests.runtime.loops.published_gradients import (
    clipping_sometimes,
    gradient_penalty,
    logging_on_one_rank,
    sharpness_aware,
)
from tests.runtime.loops.published_models import experts, layer_drop
from tests.runtime.loops.published_steps import accumulation_with_tail, uneven_last_batch

LOOPS = (
    *(dcgan, wasserstein, experts, layer_drop, accumulation_with_tail, uneven_last_batch),
    *(clipping_sometimes, gradient_penalty, logging_on_one_rank, sharpness_aware),
)


def _record(rank: int, size: int, folder: str) -> int:
    for loop in LOOPS:
        run_loop(rank, size, loop, "gloo", 4, {"mode": "overlap"})
    dist.barrier()
    dump = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]  # not in torch's stubs
    Path(folder, f"dump_rank_{rank}").write_bytes(dump)
    return len(dump)


def test_no_false_alarm_for_loops_that_end(tmp_path: Path) -> None:
    """Ten loops, one after another, with the wrapper's groups and the loops' own collectives."""
    run_ranks(_record, 2, str(tmp_path), environment={"TORCH_FR_BUFFER_SIZE": "20000"})
    report = check_order([tmp_path / "dump_rank_0", tmp_path / "dump_rank_1"])
    assert report.cannot_hang, report.findings
    assert report.num_operations > 100
