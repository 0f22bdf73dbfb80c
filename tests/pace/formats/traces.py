"""Small traces in the formats of PyTorch's profiler and of Horovod, worked out by hand.

The model has a convolution (one parameter of 300 float32) and a linear layer (a bias of 10, a weight of
200). A step takes 10,000 us: forward from 1,000, backward from 4,000, update from 8,000.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

MAIN, AUTOGRAD, STREAM, NCCL = 1, 2, 7, 9
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
SIZES = (40, 800, 1200)  # bytes, in the order of accumulation

# (name, thread, start, duration, sequence number, time of its kernel)
_OPS: list[tuple[str, int, float, float, int | None, float]] = [
    ("aten::add_", MAIN, 1000, 50, 10, 5),
    ("aten::conv2d", MAIN, 1100, 200, 10, 400),
    ("aten::convolution", MAIN, 1110, 150, 10, 0),
    ("aten::linear", MAIN, 1500, 200, 11, 300),
    ("aten::t", MAIN, 1510, 10, 11, 0),
    ("aten::addmm", MAIN, 1530, 100, 12, 0),
    ("aten::mse_loss", MAIN, 1800, 100, 13, 20),
    (EVALUATE + "MseLossBackward0", AUTOGRAD, 4000, 50, 13, 30),
    (EVALUATE + "AddmmBackward0", AUTOGRAD, 4100, 100, 12, 500),
    (EVALUATE + ACCUMULATE, AUTOGRAD, 4210, 40, None, 2),
    (EVALUATE + "TBackward0", AUTOGRAD, 4260, 10, 11, 0),
    (EVALUATE + ACCUMULATE, AUTOGRAD, 4280, 80, None, 3),
    ("c10d::allreduce_", AUTOGRAD, 4320, 30, None, 0),
    (EVALUATE + "ConvolutionBackward0", AUTOGRAD, 4400, 100, 10, 900),
    (EVALUATE + ACCUMULATE, AUTOGRAD, 4520, 80, None, 4),
    ("c10d::allreduce_", AUTOGRAD, 4560, 30, None, 0),
    ("torch.distributed.ddp.reducer::copy_bucket_to_grad", AUTOGRAD, 7000, 20, None, 50),
    ("aten::_foreach_add_", MAIN, 8000, 60, None, 230),
]


def kineto_events(
    *, steps: int = 3, shapes: bool = True, device: bool = True, waiting_us: float = 0.0, sized: bool = True
) -> list[Event]:
    """Return the events of a rank; `waiting_us` is what its all-reduces spend on waiting for a peer."""
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for step in range(steps):
        origin = 1_000_000 + 10_000 * step
        events.append(_slice("user_annotation", f"ProfilerStep#{step}", 100, MAIN, origin, 9_900, {}))
        accumulated = 0
        kernel_at = origin + 1000.0
        for number, (name, thread, start, duration, sequence, kernel) in enumerate(_OPS):
            identity = 1000 * step + number
            arguments: Event = {"External id": identity, "Record function id": identity}
            if sequence is not None:
                arguments["Sequence number"] = 100 * step + sequence
            events.append(_slice("cpu_op", name, 100, thread, origin + start, duration, arguments))
            if name == EVALUATE + ACCUMULATE:
                inner: Event = {"External id": identity + 500, "Record function id": identity + 500}
                if shapes:
                    inner |= {"Input Dims": [[SIZES[accumulated] // 4]], "Input type": ["float"]}
                events.append(_slice("cpu_op", ACCUMULATE, 100, thread, origin + start + 5, 10, inner))
                accumulated += 1
            if device and kernel:
                kernel_at = max(kernel_at, origin + start + 20)
                # Every second kernel is joined through its launch, as it would be without External id.
                launched = {"correlation": identity}
                linked = {"External id": identity} if number % 2 else {}
                events.append(
                    _slice("cuda_runtime", "cudaLaunchKernel", 100, thread, origin + start + 15, 3, launched)
                )
                events.append(_slice("kernel", f"k{number}", 0, STREAM, kernel_at, kernel, launched | linked))
                kernel_at += kernel
        for start, elements, duration in ((4360, 210, 70.0), (4600, 300, 90.0)):
            events.append(_all_reduce(origin + start, elements, duration + waiting_us + step, device, sized))
    return events


def _all_reduce(start: float, elements: int, duration: float, device: bool, sized: bool) -> Event:
    if device:
        described = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Group size": 2,
            "dtype": "Float",
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        return _slice("kernel", name, 0, NCCL, start, duration, described if sized else {})
    shapes = {"Input Dims": [[elements]], "Input type": ["float"]} if sized else {}
    return _slice("user_annotation", "gloo:all_reduce", 100, 33, start, duration, shapes)


def _slice(
    category: str, name: str, pid: int, tid: int, start: float, duration: float, arguments: Event
) -> Event:
    common = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return common | {"ts": start, "dur": duration, "args": arguments}


def kineto_document(events: Sequence[Event], **fields: Any) -> Event:
    """Return the document around events, as the profiler of rank 0 of 2 writes it."""
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}
    return head | fields | {"traceEvents": list(events)}


def execution_trace_document(*, steps: int = 3, first_record: int = 90_000, old: bool = False) -> Event:
    """Return an execution trace of the same model; records are another run's unless 0 is given."""
    nodes: list[Event] = []
    for step in range(steps):
        nodes.append(_node(1000 * step + 3, f"ProfilerStep#{step}", None, [], old))
        for place, number in enumerate((9, 11, 14)):
            identity = 1000 * step + 500 + number
            elements = SIZES[place] // 4
            nodes.append(_node(identity, ACCUMULATE, first_record + identity, [elements], old))
    return {"schema": "1.0.3-chakra.0.0.4" if old else "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes}


def shaped_execution_trace(*, batch: int = 4, micro_batches: int = 1) -> Event:
    """Return one step of a linear layer (20 to 10, with bias) on `batch` rows, every tensor recorded.

    `aten::linear` calls `t` and `addmm`; backward computes the weight's gradient only, for the input
    is data. A root, a step's annotation and the update complete it.
    """
    x, w, y, bias = [batch, 20], [10, 20], [batch, 10], [10]
    evaluate = EVALUATE + "AddmmBackward0"
    rows: list[tuple[int, int, str, int, int, list[list[int]], list[list[int]]]] = [
        (1, 1, "[pytorch|profiler|execution_trace|process]", 7, -1, [], []),
        (2, 1, "[pytorch|profiler|execution_trace|thread]", 7, -1, [], []),
        (3, 2, "ProfilerStep#0", 7, -1, [], []),
        (4, 3, "aten::linear", 0, 5, [x, w, bias], [y]),
        (5, 4, "aten::t", 0, 5, [w], [[20, 10]]),
        (6, 4, "aten::addmm", 0, 6, [bias, x, [20, 10]], [y]),
        (7, 3, "aten::relu", 0, 7, [y], [y]),
        (8, 2, EVALUATE + "ReluBackward0", 0, -1, [], []),
        (9, 8, "ReluBackward0", 1, 7, [y], []),
        (10, 9, "aten::threshold_backward", 0, -1, [y, y], [y]),
        (11, 2, evaluate, 0, -1, [], []),
        (12, 11, "AddmmBackward0", 1, 6, [y], []),
        (13, 12, "aten::mm", 0, -1, [[20, batch], y], [[20, 10]]),
        (14, 12, "aten::sum", 0, -1, [y], [bias]),
        (15, 2, EVALUATE + ACCUMULATE, 0, -1, [], []),
        (16, 15, ACCUMULATE, 1, -1, [bias], []),
        (17, 2, EVALUATE + "TBackward0", 0, -1, [], []),
        (18, 17, "TBackward0", 1, 5, [[20, 10]], []),
        (19, 2, EVALUATE + ACCUMULATE, 0, -1, [], []),
        (20, 19, ACCUMULATE, 1, -1, [w], []),
        (21, 2, "c10d::allreduce_", 0, -1, [[210]], [[210]]),
        (22, 3, "aten::add_", 0, -1, [w, w], [w]),
    ]
    passes = rows[3:20]
    for later in range(100, 100 * micro_batches, 100):
        rows[-2:-2] = [
            (i + later, p + later if p > 3 else p, name, scope, n if n < 0 else n + later, reads, writes)
            for i, p, name, scope, n, reads, writes in passes
        ]
    rows[-2:] = [(row[0] + 100 * (micro_batches - 1), *row[1:]) for row in rows[-2:]]
    nodes = []
    for identity, parent, name, scope, sequence, inputs, outputs in rows:
        attributes = {"rf_id": identity, "scope": scope, "seq_id": sequence}
        nodes.append(
            {
                "id": identity,
                "name": name,
                "ctrl_deps": parent,
                "inputs": {"values": [], "shapes": inputs, "types": ["Tensor(float)"] * len(inputs)},
                "outputs": {"values": [], "shapes": outputs, "types": ["Tensor(float)"] * len(outputs)},
                "attrs": [
                    {"name": key, "type": "int64", "value": value} for key, value in attributes.items()
                ],
            }
        )
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes}


def _node(identity: int, name: str, record: int | None, shape: list[int], old: bool) -> Event:
    shapes, types = ([shape], ["Tensor(float)"]) if shape else ([], [])
    node: Event = {"id": identity, "name": name, "ctrl_deps": 1}
    if old:
        return node | {"input_shapes": shapes, "input_types": types, "rf_id": record or 0, "inputs": []}
    attributes = [{"name": "rf_id", "type": "uint64", "value": record or 0}]
    return node | {"inputs": {"values": [], "shapes": shapes, "types": types}, "attrs": attributes}


def horovod_events(*, iterations: int = 4, own_late_us: int = 0) -> list[Event]:
    """Return a timeline of two tensors that are fused and one that is not, an iteration each 10,000 us.

    Handed over at 2,000 (b, 40 bytes), 2,500 (w, 800 bytes) and 4,000 (c, 1,200 bytes); b and w are
    on the wire from 3,000 to 3,200, c from 5,000 to 5,500; the last call ends at 5,600. Rank 0, which writes
    the timeline, reports `own_late_us` after rank 1.
    """
    tensors = (
        ("b", "[10]", 2000, 3000, 200),
        ("w", "[10, 20]", 2500, 3000, 200),
        ("c", "[300]", 4000, 5000, 500),
    )
    events: list[Event] = []
    for lane, (name, *_rest) in enumerate(tensors, start=1):
        events.append({"name": "process_name", "ph": "M", "pid": lane, "args": {"name": f"allreduce.{name}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": lane, "args": {"sort_index": lane}})
    for iteration in range(iterations):
        origin = 10_000 * iteration
        for lane, (_name, shape, handed, wire, duration) in enumerate(tensors, start=1):
            events += [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": origin + handed, "pid": lane},
                {"ph": "X", "name": "0", "ts": origin + handed + own_late_us, "pid": lane, "dur": 0},
                {"ph": "X", "name": "1", "ts": origin + handed + 2, "pid": lane, "dur": 0},
                {"ph": "E", "ts": origin + handed + max(own_late_us, 2) + 1, "pid": lane},
                {"ph": "B", "name": "ALLREDUCE", "ts": origin + wire - 10, "pid": lane},
                {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": origin + wire - 5, "pid": lane},
                {"ph": "E", "ts": origin + wire, "pid": lane},
                {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": origin + wire, "pid": lane},
                {"ph": "E", "ts": origin + wire + duration, "pid": lane},
                {
                    "ph": "E",
                    "ts": origin + wire + duration + 100,
                    "pid": lane,
                    "args": {"dtype": "float32", "shape": shape},
                },
            ]
    return events


def chakra_trace(
    *, device: bool = True, micro_batches: int = 1, reduced_bytes: int | str = 840, groups: str = "000"
) -> bytes:
    """Return the model of ``shaped_execution_trace`` as Chakra writes it, with an annotated update.

    With `device`, addmm, relu, the two backward ops and the update launch kernels of 100, 20, 30, 200
    and 50 us, two collectives of `reduced_bytes` take 75 and 70 us, and one of 4 bytes waits, in all 600 us;
    without, these are the ops' own durations. `groups` names the collectives' process groups. Dependencies
    chain the nodes, a kernel's also names the kernel before it.
    """
    durations = {6: 100, 7: 20, 10: 30, 13: 200, 23: 50}
    rows = shaped_execution_trace(micro_batches=micro_batches)["nodes"]
    rows[-1]["id"] += 1
    mark = {"id": rows[-1]["id"] - 1, "name": "Optimizer.step#SGD.step", "inputs": {}}
    rows.insert(-1, mark | {"attrs": [{"name": "scope", "value": 7}]})
    nodes = [_message((1, b"0.0.4"))]
    kernel_before: list[int] = []
    for node in rows:
        identity = node["id"]
        own = 0 if device else durations.get(identity, 0)
        attributes = {a["name"]: a["value"] for a in node["attrs"]} | {"is_cpu_op": True}
        nodes.append(_chakra_node(identity, node["name"], 4, [identity - 1], own, attributes, node["inputs"]))
        if device and identity in durations:
            kernel = {"is_cpu_op": False, "stream": 7, "seq_id": -1}
            deps = [identity, *kernel_before]
            nodes.append(_chakra_node(100 + identity, "kernel", 4, deps, durations[identity], kernel, {}))
            kernel_before = [100 + identity]
    reduced = {"is_cpu_op": False, "comm_type": 0, "comm_size": reduced_bytes}
    small = reduced | {"comm_size": 4}
    calls = ((900, 75, reduced), (901, 70, reduced), (902, 600, small))
    for group, (identity, duration, about) in zip(groups, calls, strict=True):
        named: Event = {**about, "pg_name": group}
        nodes.append(_chakra_node(identity, "ncclDevKernel_AllReduce", 7, [21], duration, named, {}))
    return b"".join(_varint(len(node)) + node for node in nodes)


def generated_chakra_trace() -> bytes:
    """Return what a generator writes: compute nodes and all-reduces that it named itself."""
    nodes = [_message((1, b"0.0.4"))]
    for number in range(4):
        reduces = {"is_cpu_op": False, "comm_type": 0, "comm_size": 1 << 20}
        nodes.append(_chakra_node(2 * number, f"COMP_NODE_{number}", 4, [], 100, {"is_cpu_op": False}, {}))
        nodes.append(_chakra_node(2 * number + 1, "COMM_COLL_NODE", 7, [2 * number], 50, reduces, {}))
    return b"".join(_varint(len(node)) + node for node in nodes)


def _chakra_node(
    identity: int, name: str, kind: int, deps: list[int], duration: int, attributes: Event, inputs: Event
) -> bytes:
    described = _message(
        (2, str(inputs.get("shapes", [])).encode()), (3, str(inputs.get("types", [])).encode())
    )
    written = []
    for key, value in attributes.items():
        of_type = (29, value.encode()) if isinstance(value, str) else (9, int(value))
        written.append((10, _message((1, key.encode()), (27, value) if isinstance(value, bool) else of_type)))
    packed = b"".join(_varint(dep) for dep in deps)
    return _message(
        (1, identity), (2, name.encode()), (3, kind), (5, packed), (7, duration), (8, described), *written
    )


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += _varint(number << 3) + _varint(value)
        else:
            written += _varint(number << 3 | 2) + _varint(len(value)) + value
    return written


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    written = b""
    while value > 0x7F:
        written += bytes([value & 0x7F | 0x80])
        value >>= 7
    return written + bytes([value])


def write_json(path: Path, document: object) -> Path:
    """Write a document and return its path."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
