"""Small traces of every kind of job on a CPU with Gloo, made from those of ``tests.pace.formats.traces``."""

from collections.abc import Callable
from typing import Any

from tests.pace.formats.kineto_features import make_event
from tests.pace.formats.traces import (
    ACCUMULATE,
    AUTOGRAD,
    EVALUATE,
    MAIN,
    Event,
    kineto_document,
    kineto_events,
)

GLOO, GLOO_TOO = 33, 34
STEP_US = 10_000
_SENDS = ("c10d::", "gloo:", "torch.distributed.ddp.reducer::")
_GROUPS = [("0", "default_pg", 4), ("1", "mesh_replicate", 2), ("2", "mesh_shard", 2)]


def _origins(steps: int = 3) -> list[int]:
    return [1_000_000 + STEP_US * step for step in range(steps)]


def _busy_events(update_us: int = 4700) -> list[Event]:
    """Return the events of steps in which the update follows the all-reduces at once and ends the step."""
    events = kineto_events(device=False)
    for event in events:
        offset = (event.get("ts", 0) - 1_000_000) % STEP_US
        if event["name"] == "aten::_foreach_add_":
            event["ts"] += update_us + 20 - offset
            event["dur"] = 9_990 - update_us - 20
        elif event["name"].endswith("copy_bucket_to_grad"):
            event["ts"] += update_us - offset
            event["dur"] = 10
    return events


def _is_call(event: Event) -> bool:
    return str(event["name"]).startswith(_SENDS)


def _issue(name: str, start: float, *shapes: Any, thread: int = AUTOGRAD) -> Event:
    return make_event("cpu_op", f"c10d::{name}", thread, start, 5, **{"Input Dims": list(shapes)})


def _run(
    name: str, start: float, duration: float, elements: int, thread: int = GLOO, kind: str = "float"
) -> Event:
    shapes = {"Input Dims": [[elements]], "Input type": [kind]}
    return make_event("user_annotation", f"gloo:{name}", thread, start, duration, **shapes)


def ddp_events(update_us: int = 4700) -> list[Event]:
    """Return DDP's two buckets of 840 and 1,200 bytes, under the backward pass."""
    events = _busy_events(update_us)
    return events + [
        make_event("user_annotation", "DistributedDataParallel.forward", MAIN, origin + 1000, 950)
        for origin in _origins()
    ]


def other_gradients_events(*shapes: list[int]) -> list[Event]:
    """Return DDP's events with gradients of other shapes, in the order in which they are ready."""
    events = ddp_events()
    accumulated = [event for event in events if event["name"] == ACCUMULATE]
    for place, event in enumerate(accumulated):
        event["args"]["Input Dims"] = [shapes[place % len(shapes)]]
    return events


def one_bucket_events() -> list[Event]:
    """Return DDP's events with one all-reduce a step, of all 510 elements."""
    first_us = 4320  # the first bucket is issued then
    events = []
    for event in ddp_events():
        if event["name"] == "gloo:all_reduce":
            if event["args"]["Input Dims"] == [[210]]:
                continue
            event["args"]["Input Dims"] = [[510]]
        elif event["name"] == "c10d::allreduce_" and event["ts"] % STEP_US == first_us:
            continue
        events.append(event)
    return events


def hook_events() -> list[Event]:
    """Return DDP with a hook that sends half of the bytes: as many elements, of two bytes each."""
    events = ddp_events()
    for event in events:
        if event["name"] == "gloo:all_reduce":
            event["args"]["Input type"] = ["c10::Half"]
    return events


def accumulation_events(*, no_sync: bool = True) -> list[Event]:
    """Return steps of 14,000 us with two micro-batches; the first one sends only without `no_sync`."""
    events: list[Event] = []
    for event in ddp_events():
        if "ts" not in event:
            events.append(event)
            continue
        step, offset = divmod(event["ts"] - 1_000_000, STEP_US)
        origin = 1_000_000 + 14_000 * step
        if event["name"].startswith("ProfilerStep"):
            events.append(event | {"ts": origin + offset, "dur": 13_900})
            continue
        events.append(event | {"ts": origin + 4_000 + offset})
        is_update = event["name"].endswith(("copy_bucket_to_grad", "_foreach_add_"))
        if not is_update and not (no_sync and _is_call(event)):
            arguments = dict(event["args"])
            if "Sequence number" in arguments:
                arguments["Sequence number"] -= 50
            events.append(event | {"ts": origin + offset, "args": arguments})
    return events


def serial_events() -> list[Event]:
    """Return all-reduces of each gradient, one after another: from 4,610 us, of 800, 500 and 1,000 us."""
    events = [event for event in _busy_events(7020) if not _is_call(event)]
    for origin in _origins():
        for start, duration, elements in ((4610, 800, 10), (5430, 500, 200), (5960, 1000, 300)):
            events.append(_issue("allreduce_", origin + start, [[elements]], thread=MAIN))
            events.append(_run("all_reduce", origin + start + 10, duration, elements))
    return events


def fully_sharded_events() -> list[Event]:
    """Return FSDP2: gathers in the forward pass, reduce-scatters, which Gloo notes as all-reduces."""
    events = [event for event in _busy_events() if not _is_call(event)]
    for origin in _origins():
        events += [
            make_event("user_annotation", "FSDP::all_gather (layer)", MAIN, origin + 1050, 20),
            _issue("_allgather_base_", origin + 1055, [1020], [510], thread=MAIN),
            _run("all_gather", origin + 1060, 20, 510),
            _issue("_reduce_scatter_base_", origin + 4370, [105], [210]),
            _run("all_reduce", origin + 4380, 15, 210),
            _issue("_reduce_scatter_base_", origin + 4600, [150], [300]),
            _run("all_reduce", origin + 4610, 20, 300, GLOO_TOO),
        ]
    return events


def wrapped_shards_events() -> list[Event]:
    """Return FSDP1: the same calls under the annotations of FullyShardedDataParallel."""
    return [
        event | {"name": str(event["name"]).replace("FSDP::all_gather", "FullyShardedDataParallel.forward")}
        for event in fully_sharded_events()
    ]


def hybrid_events(*, head_us: float | None = None, sender: str | None = None) -> list[Event]:
    """Return HSDP on 2 x 2 ranks: each reduce-scatter's shard, of 105 and 150 elements, is all-reduced.

    With `head_us`, a shard of 15 elements is sent then, whose gradient was ready long before. With `sender`,
    an operator of this name issues the first all-reduce of each step, as a layer's statistics are.
    """
    events = fully_sharded_events()
    for origin in _origins():
        if sender:
            events.append(make_event("cpu_op", EVALUATE + sender, AUTOGRAD, origin + 4384, 12))
            events.append(make_event("cpu_op", sender, AUTOGRAD, origin + 4384, 12))
        for start, elements in ((4385, 105), (4640, 150), *([(head_us, 15)] if head_us else [])):
            events.append(_issue("allreduce_", origin + start, [[elements]]))
            events.append(_run("all_reduce", origin + start + 20, 60, elements, 35))
    return events


def tensor_parallel_events() -> list[Event]:
    """Return two all-reduces of activations, of 2,048 elements, in every forward pass."""
    events = [event for event in _busy_events() if not _is_call(event)]
    for origin in _origins():
        for start in (1310, 1710):
            events.append(_issue("allreduce_", origin + start, [[2048]], thread=MAIN))
            events.append(_run("all_reduce", origin + start + 10, 50, 2048))
    return events


def pipeline_events() -> list[Event]:
    """Return a stage that receives activations and sends gradients."""
    events = [event for event in _busy_events() if not _is_call(event)]
    for origin in _origins():
        events += [
            _issue("recv_", origin + 1010, [[64]], thread=MAIN),
            _run("recv", origin + 1020, 30, 64),
            _issue("send", origin + 4700, [[64]], thread=MAIN),
            _run("send", origin + 4710, 30, 64),
        ]
    return events


def zero_events() -> list[Event]:
    """Return DDP whose optimizer holds a share of the state and broadcasts what it updated."""
    events = ddp_events()
    for origin in _origins():
        name = "Optimizer.step#ZeroRedundancyOptimizer.step"
        events.append(make_event("user_annotation", name, MAIN, origin + 7900, 400))
        events.append(_issue("broadcast_", origin + 8100, [[510]], thread=MAIN))
        events.append(_run("broadcast", origin + 8110, 60, 510))
    return events


def inference_events() -> list[Event]:
    """Return forward passes alone."""
    return [
        event
        for event in kineto_events(device=False, steps=8)
        if not _is_call(event) and event.get("tid") == MAIN and not event["name"].endswith("foreach_add_")
    ]


def single_events() -> list[Event]:
    """Return one process that trains alone."""
    return [event for event in _busy_events() if not _is_call(event)]


def sampled_events() -> list[Event]:
    """Return a trace from which ops inside of others were taken."""
    return [event for event in ddp_events() if event["name"] != ACCUMULATE]


def old_torch_events() -> list[Event]:
    """Return what torch 1.8 records: no `evaluate_function` around backward ops, and other categories."""
    events = []
    for event in ddp_events():
        if event["name"] == EVALUATE + ACCUMULATE:
            continue
        name = str(event["name"]).removeprefix(EVALUATE)
        category = "Operator" if event.get("cat") in ("cpu_op", "user_annotation") else event.get("cat")
        events.append(event | {"name": name, "cat": category})
    return events


def late_events() -> list[Event]:
    """Return two all-reduces of 0.8 and 8 MB on two threads: both wait for late ranks and end at 7,600 us.

    They are ready at 4,320 and 4,560, and last 3,230 and 3,000 us: the larger one is shorter.
    """
    events = [event for event in ddp_events(7620) if event["name"] != "gloo:all_reduce"]
    large = {40: 100_000, 800: 100_000, 1200: 2_000_000}
    for event in events:
        shape = event.get("args", {}).get("Input Dims")
        if event["name"] == ACCUMULATE:
            event["args"]["Input Dims"] = [[large[4 * shape[0][0]]]]
    for origin in _origins():
        events.append(_run("all_reduce", origin + 4370, 3230, 200_000))
        events.append(_run("all_reduce", origin + 4600, 3000, 2_000_000, GLOO_TOO))
    return events


def document_of(
    events: list[Event], *, workers: int = 2, rank: int = 0, backend: str = "gloo", **fields: Any
) -> Event:
    """Return the document around a rank's events; four workers are 2 x 2."""
    told: dict[str, Any] = {"backend": backend, "rank": rank, "world_size": workers}
    if workers == 4:
        told["pg_config"] = [{"pg_name": n, "pg_desc": d, "pg_size": size} for n, d, size in _GROUPS]
    return kineto_document(events, distributedInfo=told, **fields)


# The kind, how sure it is, what makes the events, and the number of workers.
KINDS: tuple[tuple[str, str, Callable[[], list[Event]], int], ...] = (
    ("DDP", "certain", ddp_events, 2),
    ("DDP with a communication hook", "certain", hook_events, 2),
    ("DDP with gradient accumulation", "certain", accumulation_events, 2),
    ("all-reduces after the backward pass", "likely", serial_events, 2),
    ("HSDP", "certain", hybrid_events, 4),
)
REFUSED: tuple[tuple[str, Callable[[], list[Event]], str], ...] = (
    (
        "accumulation without no_sync",
        lambda: accumulation_events(no_sync=False),
        "DistributedDataParallel.no_sync",
    ),
    ("FSDP1", wrapped_shards_events, "--exchange sharded"),
    ("FSDP2", fully_sharded_events, "--fsdp2"),
    ("tensor parallel", tensor_parallel_events, "sum activations"),
    ("pipeline parallel", pipeline_events, "sends and receives"),
    ("ZeRO", zero_events, "--exchange sharded"),
    ("inference", inference_events, "nothing to schedule"),
    ("a sampled trace", sampled_events, "record with torch.profiler"),
    ("a trace of an old torch", old_torch_events, "torch 1.11 or later"),
)
