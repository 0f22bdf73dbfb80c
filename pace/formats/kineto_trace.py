"""Kineto's Chrome trace, streamed into the few fields that a profile needs.

Times are seconds on the trace's own clock. What the events mean for a training step is worked out in
``pace.formats.kineto_steps``.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pace.documents.profile import ELEMENT_BYTES, MOST_WORKERS, DType
from pace.errors import FormatError
from pace.formats.reading import (
    first_character,
    number,
    read_json_before,
    read_json_field,
    refuse_utf16,
    stream_json,
    whole_or_none,
)
from pace.formats.recognize import head_of, refuse_foreign
from pace.formats.tensor_types import DTYPES, MOST_ELEMENTS, elements_of

Thread = tuple[int | str, int | str]

# What torch 1.8 to 1.10 called the categories. They put annotations among the operators.
_OLD_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
_OLD_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "nccl:", "gloo:", "DistributedDataParallel.")
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {f"{device}_{of}" for device in ("cuda", "xpu", "privateuse1") for of in ("runtime", "driver")}
# Kernels of NCCL, RCCL, oneCCL and others; not of a `syncClusters`.
_CCL = re.compile(r"(?<![a-z])(?:n|r|one|h|x|ms|m)ccl", re.IGNORECASE)
_ASCEND = "Ascend Hardware"
# What IBM's runtime calls its work and its calls.
_AIU = re.compile(r".* Cmpt (?:Exec|Prep)$|aiu(?:SubmitToHardware|Comms)")
_REFUSAL = (
    "this is a trace of {profiler}, whose kernels and collectives are not read. Put the layers' times "
    "into a table and run `pace import layers TABLE.csv --workers N --bandwidth-gbps G`."
)
_MODULE = "nn.Module: "
_GRADIENT = "torch::autograd::AccumulateGrad"
_EPOCH_S = 1e9  # the year 2001: clocks that count from a host's start are far below


@dataclass(slots=True)
class Collective:
    """What a trace says about a collective; None where it does not.

    Attributes
    ----------
    described
        Whether NCCL's instrumentation says it, and not only a kernel's name.
    group, ranks
        The name of its process group, and the ranks in it.
    """

    name: str
    size_bytes: int | None
    workers: int | None
    described: bool = True
    dtype: DType | None = None
    group: str | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(slots=True)
class HostOp:
    """An operator or an annotation on a host thread.

    Attributes
    ----------
    undefined
        Shapes were recorded, and the first input is no tensor.
    elements
        Number of elements that an operator's collective moves; 0 if that is not recorded.
    shape
        The shape of a gradient that is accumulated; None of other operators.
    fallback_sequence
        The sequence number of the op around one that runs inside another backward op.
    of_layer
        Whether it is an all-reduce of a layer's own, such as of BatchNorm's statistics, and not of gradients.
    """

    name: str
    thread: Thread
    start_s: float
    end_s: float
    external: int | None
    sequence: int | None
    record: int | None
    size_bytes: int | None
    dtype: DType | None
    undefined: bool = False
    collective: Collective | None = None
    elements: int = 0
    shape: tuple[int, ...] | None = None
    fallback_sequence: int | None = None
    of_layer: bool = False


@dataclass(slots=True)
class DeviceWork:
    """A kernel, copy or fill on a device's stream."""

    name: str
    stream: tuple[int | str, int | str]
    start_s: float
    duration_s: float
    external: int | None
    correlation: int | None
    collective: Collective | None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A process group that a trace lists; its ranks are none if they are not told."""

    description: str
    size: int
    ranks: frozenset[int]


@dataclass
class KinetoTrace:
    """One rank's trace; times are seconds since its first event.

    Attributes
    ----------
    groups
        The process groups, as far as the trace lists them.
    backend
        What the processes communicate with, as torch names it.
    base_s
        What the profiler took off every time, in seconds since 1970.
    rounded
        Whether every time is a whole number of microseconds, as older profilers write them.
    """

    path: str
    rank: int | None
    workers: int | None
    groups: tuple[ListedGroup, ...] = ()
    backend: str | None = None
    base_s: float = 0.0
    origin_us: float | None = None
    rounded: bool = True
    ops: list[HostOp] = field(default_factory=list)
    annotations: list[HostOp] = field(default_factory=list)
    modules: list[HostOp] = field(default_factory=list)
    work: list[DeviceWork] = field(default_factory=list)
    launches: dict[int, tuple[Thread, float]] = field(default_factory=dict)

    @cached_property
    def first_launch(self) -> int | None:
        """The smallest correlation of a recorded launch: work below it was launched before recording."""
        return min(self.launches, default=None)

    @property
    def own_groups(self) -> dict[str, frozenset[int]]:
        """By description, the ranks of the process groups that have this rank, but not all ranks."""
        some = (each for each in self.groups if 1 < len(each.ranks) < (self.workers or 0))
        return {each.description: each.ranks for each in some if self.rank in each.ranks}

    @property
    def recorded_at_s(self) -> tuple[float, float] | None:
        """When recording began and ended, in seconds since 1970; None if the clock counts from elsewhere."""
        began = self.base_s + (self.origin_us or 0.0) * 1e-6
        return None if began < _EPOCH_S else (began, began + max(op.end_s for op in self.ops))

    def launched_before(self, work: DeviceWork) -> bool:
        """Return whether work was launched before recording began."""
        return (
            work.correlation is not None
            and self.first_launch is not None
            and work.correlation < self.first_launch
        )


def read_kineto_trace(path: str | Path) -> KinetoTrace:
    """Stream a trace; memory grows with the operators and kernels, not with the file's text.

    Raises
    ------
    FormatError
        With the event at fault.
    """
    first = first_character(path)
    if first not in (b"{", b"["):
        head = head_of(path)
        refuse_utf16(head, path)
        refuse_foreign(head, path)
        raise FormatError(path, "no JSON: expected a Kineto trace, as export_chrome_trace writes it")
    bare = first == b"["
    fields = {} if bare else read_json_before(path, "traceEvents")
    distributed = fields.get("distributedInfo")
    if distributed is None and not bare:
        distributed = read_json_field(path, "distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    trace = KinetoTrace(
        path=str(path),
        rank=whole_or_none(distributed.get("rank")),
        workers=whole_or_none(distributed.get("world_size")),
        groups=tuple(_groups(distributed.get("pg_config"))),
        backend=_text(distributed.get("backend")),
        base_s=(whole_or_none(fields.get("baseTimeNanoseconds")) or 0) * 1e-9,
    )
    for place, event in enumerate(stream_json(path, "item" if bare else "traceEvents.item")):
        if not isinstance(event, dict):
            raise FormatError(path, "expected an object", f"traceEvents[{place}]")
        if event.get("ph") == "X":
            _take(trace, event, f"traceEvents[{place}]")
        elif event.get("name") == "process_name" and event.get("args") == {"name": _ASCEND}:
            raise FormatError(path, _REFUSAL.format(profiler="Ascend's profiler"))
    if not trace.ops:
        only = "only the device was recorded: add ProfilerActivity.CPU, and record again"
        raise FormatError(
            path, only if trace.work else "no operators: expected a Kineto trace with cpu_op events"
        )
    processes = {op.thread[0] for op in trace.ops}
    if len(processes) > 1:
        raise FormatError(
            path, f"operators of {len(processes)} processes in one file: pass one trace for each rank"
        )
    return trace


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _groups(listed: Any) -> Iterator[ListedGroup]:
    for group in listed if isinstance(listed, list) else []:
        size = whole_or_none(group.get("pg_size")) if isinstance(group, dict) else None
        if size is not None:
            ranks = group.get("ranks")
            told = ranks if isinstance(ranks, list) else []
            yield ListedGroup(
                str(group.get("pg_desc")), size, frozenset(each for each in told if isinstance(each, int))
            )


def _take(trace: KinetoTrace, event: dict[str, Any], position: str) -> None:
    category = str(event.get("cat"))
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        arguments = {}
    name = event.get("name")
    name = sys.intern(name) if isinstance(name, str) else ""
    if category in _OLD_CATEGORIES:
        category = _OLD_CATEGORIES[category]
        if category == "cpu_op" and name.startswith(_OLD_ANNOTATIONS):
            category = "user_annotation"
    if category == "cpu_op":
        trace.ops.append(_host_op(trace, event, name, arguments, position))
    elif category == "user_annotation":
        trace.annotations.append(_host_op(trace, event, name, arguments, position))
    elif category == "python_function" and name.startswith(_MODULE):
        module = sys.intern(name.removeprefix(_MODULE))
        trace.modules.append(_host_op(trace, event, module, arguments, position))
    elif _AIU.match(name):
        raise FormatError(trace.path, _REFUSAL.format(profiler="IBM's AIU (Spyre)"))
    elif category in _DEVICE:
        start, end = _times(trace, event, position)
        collective = _collective(arguments) if category == "kernel" else None
        trace.work.append(
            DeviceWork(
                name=name,
                stream=(_label(event.get("pid")), _label(event.get("tid"))),
                start_s=start,
                duration_s=end - start,
                external=whole_or_none(arguments.get("External id", arguments.get("external id"))),
                correlation=whole_or_none(arguments.get("correlation")),
                collective=collective or _named_collective(name),
            )
        )
    elif category in _LAUNCHES:
        correlation = whole_or_none(arguments.get("correlation"))
        if correlation is not None:
            start, _ = _times(trace, event, position)
            trace.launches[correlation] = ((_label(event.get("pid")), _label(event.get("tid"))), start)


def _host_op(
    trace: KinetoTrace, event: dict[str, Any], name: str, arguments: dict[str, Any], position: str
) -> HostOp:
    start, end = _times(trace, event, position)
    size, dtype = _tensor(arguments) if "Input Dims" in arguments else (None, None)
    return HostOp(
        name=name,
        thread=(_label(event.get("pid")), _label(event.get("tid"))),
        start_s=start,
        end_s=end,
        external=whole_or_none(arguments.get("External id", arguments.get("external id"))),
        sequence=whole_or_none(arguments.get("Sequence number")),
        record=whole_or_none(arguments.get("Record function id")),
        size_bytes=size,
        dtype=dtype,
        undefined=size is None and _is_undefined(arguments),
        collective=_collective(arguments) if name == "record_param_comms" else None,
        elements=_moved(arguments) if name.startswith(("c10d::", "gloo:")) else 0,
        shape=_shape(arguments) if name == _GRADIENT else None,
    )


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    dims = arguments.get("Input Dims")
    first = dims[0] if isinstance(dims, list) and dims else None
    return tuple(first) if isinstance(first, list) and elements_of(first) is not None else None


def _moved(arguments: dict[str, Any]) -> int:
    """Return the elements of the larger of the first two inputs: tensors, or lists of them."""
    dims = arguments.get("Input Dims")
    return max((_elements(shape) for shape in dims[:2]), default=0) if isinstance(dims, list) else 0


def _elements(shape: Any) -> int:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        return sum(_elements(each) for each in shape)
    return (elements_of(shape) or 0) if isinstance(shape, list) and shape else 0


def _is_undefined(arguments: dict[str, Any]) -> bool:
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    return isinstance(dims, list) and isinstance(types, list) and dims[:1] == [[]] and types[:1] == [""]


def _times(trace: KinetoTrace, event: dict[str, Any], position: str) -> tuple[float, float]:
    start = number(event.get("ts"), trace.path, "ts", position)
    duration = number(event.get("dur"), trace.path, "dur", position)
    if trace.origin_us is None:
        # Microseconds since 1970 as seconds would lose a quarter of a microsecond to rounding.
        trace.origin_us = start
    if not start.is_integer():
        trace.rounded = False
    start -= trace.origin_us
    return start * 1e-6, (start + duration) * 1e-6


def _label(value: object) -> int | str:
    return value if isinstance(value, int | str) else str(value)


def _tensor(arguments: dict[str, Any]) -> tuple[int | None, DType | None]:
    """Return the bytes of an operator's first input, where its shape and type were recorded."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not (isinstance(dims, list) and dims and isinstance(types, list) and types):
        return None, None
    dtype = DTYPES.get(str(types[0]).lower())
    elements = elements_of(dims[0])
    return (None, None) if dtype is None or elements is None else (elements * ELEMENT_BYTES[dtype], dtype)


def _collective(arguments: dict[str, Any]) -> Collective | None:
    name = arguments.get("Collective name")
    if not isinstance(name, str) or not name:
        return None
    dtype = DTYPES.get(str(arguments.get("dtype")).lower())
    elements = whole_or_none(arguments.get("In msg nelems"))
    if elements is not None and elements >= MOST_ELEMENTS:
        elements = None
    size = None if dtype is None or elements is None else elements * ELEMENT_BYTES[dtype]
    workers, group = whole_or_none(arguments.get("Group size")), arguments.get("Process Group Name")
    if workers is not None and workers > MOST_WORKERS:
        workers = None
    return Collective(
        name.lower(),
        size,
        workers,
        dtype=dtype,
        group=group if isinstance(group, str) else None,
        ranks=_ranks(arguments, workers),
    )


def _ranks(arguments: dict[str, Any], workers: int | None) -> tuple[int, ...] | None:
    """Return the ranks of a group: as listed, unless the list is cut short, else by start and stride."""
    listed = tuple(map(int, re.findall(r"\d+", str(arguments.get("Process Group Ranks")))))
    if listed and len(listed) == workers:
        return listed
    start, stride = (whole_or_none(arguments.get(f"Global rank {part}")) for part in ("start", "stride"))
    if workers is None or start is None or stride is None or (stride == 0 and workers > 1):
        return None
    return tuple(start + stride * place for place in range(workers))


def _named_collective(kernel: str) -> Collective | None:
    # Before torch 2.3 a kernel's name is all that tells it from compute.
    if not _CCL.search(kernel):
        return None
    plain = kernel.lower().replace("_", "")
    for name in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv"):
        if name in plain:
            return Collective(name, None, None, described=False)
    return Collective("unnamed", None, None, described=False)
