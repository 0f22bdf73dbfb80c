"""Horovod's own fusion, seen in the timeline of a real run of two processes, against the simulator's rule."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from pace.simulation.horovod import fuse_responses
from tests.runtime.launch import run_ranks

# Elements of float32 or float64, submitted at once in this order: some fit together, one is larger than the
# threshold, and the other dtype is looked past.
TENSORS = (
    (6000, "float32"),
    (7000, "float32"),
    (1000, "float64"),
    (2500, "float32"),
    (30000, "float32"),
    (1000, "float64"),
    (400, "float32"),
    (14000, "float32"),
    (2000, "float32"),
)
THRESHOLD = 65536  # a multiple of what Horovod rounds to


def _reduce_all_at_once(_rank: int, _size: int) -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    # The first collective takes cycles of its own to set up; what is compared comes after.
    hvd.allreduce(torch.zeros(1), name="first", op=hvd.Sum)
    handles = [
        hvd.allreduce_async(torch.zeros(count, dtype=getattr(torch, kind)), name=f"t{number}", op=hvd.Sum)
        for number, (count, kind) in enumerate(TENSORS)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    # A cycle more, in which the timeline's writer catches up: it breaks off with the run.
    hvd.allreduce(torch.zeros(1), name="last", op=hvd.Sum)
    hvd.shutdown()


def groups_in(timeline: str) -> list[tuple[int, ...]]:
    """Return the tensors that were reduced together, in the order in which that began."""
    text = timeline.rstrip().rstrip(",")
    events: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    named = [e for e in events if e.get("name") == "process_name" and "name" in e["args"]]
    names = {e["pid"]: e["args"]["name"] for e in named}
    # Tensors of one response enter the fused operation in turn, and leave it in turn after the last entered.
    opened: list[int] = []
    together: list[tuple[int, ...]] = []
    running = 0
    stacks: dict[Any, list[str]] = {}
    for event in events:
        name = names.get(event.get("pid"), "")
        number = name.rpartition(".t")[2]
        if event.get("ph") == "B":
            stacks.setdefault(event["pid"], []).append(event["name"])
            if event["name"] == "ALLREDUCE" and number.isdigit():
                opened.append(int(number))
                running += 1
        elif event.get("ph") == "E":
            stack = stacks.get(event["pid"], [])
            ended = stack.pop() if stack else ""
            if ended == "ALLREDUCE" and number.isdigit():
                running -= 1
                if not running:
                    together.append(tuple(opened))
                    opened = []
    return together


@pytest.mark.races_with_machine(reason="all tensors must be submitted within one cycle of half a second")
@pytest.mark.horovod
@pytest.mark.slow
def test_real_horovod_fuses_as_simulated(tmp_path: Path) -> None:
    """The groups in rank 0's timeline are those of ``fuse_responses``, in its order."""
    pytest.importorskip("horovod.torch")
    timeline = tmp_path / "timeline.json"
    environment = {
        "HOROVOD_TIMELINE": str(timeline),
        "HOROVOD_FUSION_THRESHOLD": str(THRESHOLD),
        "HOROVOD_CYCLE_TIME": "500",  # ms: all tensors are submitted within one cycle
        "HOROVOD_CACHE_CAPACITY": "0",
    }
    run_ranks(_reduce_all_at_once, 2, backend="horovod", environment=environment)
    sizes = [count * (4 if kind == "float32" else 8) for count, kind in TENSORS]
    dtypes = [0 if kind == "float32" else 1 for _, kind in TENSORS]
    expected = fuse_responses(deque(range(len(sizes))), sizes, dtypes, THRESHOLD)
    assert len({len(group) for group in expected}) > 1
    assert groups_in(timeline.read_text()) == expected
