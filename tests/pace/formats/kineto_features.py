"""The events of ``tests.pace.formats.traces`` with what traces of real jobs have besides."""

from typing import Any

from tests.pace.formats.traces import AUTOGRAD, EVALUATE, MAIN, NCCL, STREAM, Event, kineto_events


def make_event(category: str, name: str, tid: int, start: float, duration: float, **arguments: Any) -> Event:
    """Return one complete event, on the device if it is a kernel."""
    pid = 0 if category == "kernel" else 100
    common = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return common | {"ts": start, "dur": duration, "args": arguments}


def launched_events(*, behind_us: float = 0.0) -> list[Event]:
    """Return events whose all-reduces have launches; the device runs them so much later."""
    events = kineto_events()
    for number, event in enumerate(list(events)):
        if event.get("cat") == "kernel" and event["tid"] == NCCL:
            launched = {"correlation": 700_000 + number}
            event["args"] |= launched
            events.append(
                make_event("cuda_runtime", "cudaLaunchKernel", AUTOGRAD, event["ts"], 3, **launched)
            )
            event["ts"] += behind_us
    return events


def rounded_events() -> list[Event]:
    """Return events with a child of 1 us that starts when its parent's rounded time is over.

    It does so in two of three steps. A kernel launched before recording began runs in the first step.
    """
    events = kineto_events()
    for step in (0, 2):
        at = 1_001_300 + 10_000 * step  # conv2d runs from 1,100 to 1,300
        events.append(make_event("cpu_op", "aten::detach", MAIN, at, 1))
    for event in events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 500
    events.append(make_event("kernel", "early", STREAM, 1_000_200, 90, correlation=7))
    return events


def reentrant_events() -> list[Event]:
    """Return the model's events with its backward ops inside one op of a reentrant checkpoint."""
    events = kineto_events()
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        number = {"Sequence number": 100 * step + 10}
        name = EVALUATE + "CheckpointFunctionBackward"
        events.append(make_event("cpu_op", name, AUTOGRAD, origin + 3990, 1000, **number))
        launch = {"correlation": 500_000 + step}
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", AUTOGRAD, origin + 3995, 2, **launch))
        events.append(make_event("kernel", "recompute", STREAM, origin + 3998, 11, **launch))
    for event in events:
        if event["name"] == EVALUATE + "AddmmBackward0":
            del event["args"]["Sequence number"]  # the forward op ran inside the checkpoint
    return events


def all_to_all_events() -> list[Event]:
    """Return events with an all-to-all of 305 us between the convolution's kernel and the linear layer's.

    It starts 5 us after the convolution's end, at 1,520; the linear layer's kernel, launched at 1,515, and
    all behind it on their stream run 315 us later.
    """
    events = launched_events()
    for event in events:
        since = (event["ts"] - 1_000_000) % 10_000 if "ts" in event else 0
        if event.get("cat") == "kernel" and event["tid"] == STREAM and since >= 1520:
            event["ts"] += 315
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        launch = {"correlation": 850_000 + step}
        events += [
            make_event("user_annotation", "nccl:all_to_all", MAIN, origin + 1400, 20),
            make_event("cuda_runtime", "cudaLaunchKernel", MAIN, origin + 1405, 3, **launch),
            make_event("kernel", "ncclKernel_SendRecv", NCCL, origin + 1525, 305, **launch),
        ]
    return events


def gloo_all_to_all_events() -> list[Event]:
    """Return a CPU's events with an all-to-all that the linear layer waits for.

    Gloo's thread runs it from 1,420 to 1,490; its caller issued it at 1,410 and runs nothing from 1,415 on.
    """
    events = kineto_events(device=False)
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        events += [
            make_event("cpu_op", "c10d::alltoall_base_", MAIN, origin + 1410, 5),
            make_event("user_annotation", "gloo:all_to_all", 33, origin + 1420, 70),
        ]
    return events


def statistics_events(*, device: bool) -> list[Event]:
    """Return events in which a layer sums 64 numbers over all ranks, forward and backward."""
    events = launched_events() if device else kineto_events(device=False)
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        for number, (thread, at, outer) in enumerate(
            ((MAIN, 1310, "_AllReduce"), (AUTOGRAD, 4410, "_AllReduceBackward"))
        ):
            shape = {"Input Dims": [[[64]], [], [], [], [], []]}
            events += [
                make_event("cpu_op", outer, thread, origin + at, 60),
                make_event("cpu_op", "c10d::allreduce_", thread, origin + at + 5, 5, **shape),
            ]
            if device:
                launched = {"correlation": 900_000 + 10 * step + number}
                sized = {
                    "Collective name": "allreduce",
                    "In msg nelems": 64,
                    "dtype": "Float",
                    "Group size": 2,
                }
                events += [
                    make_event("cuda_runtime", "cudaLaunchKernel", thread, origin + at + 7, 2, **launched),
                    make_event(
                        "kernel", "ncclDevKernel_AllReduce", NCCL, origin + at + 12, 20, **launched, **sized
                    ),
                ]
            else:
                note = {"Input Dims": [[64]], "Input type": ["float"]}
                events.append(
                    make_event("user_annotation", "gloo:all_reduce", 33, origin + at + 12, 40, **note)
                )
    return events
