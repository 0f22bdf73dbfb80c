"""Which tool wrote a file, told by its content; its name decides only between tables and Chakra traces.

Files of tools that PACE does not read are recognized too, so that the refusal names them and says what to do.
"""

import re
from pathlib import Path
from typing import Literal

from pace.documents.base import UTF8_MARK
from pace.errors import FormatError
from pace.formats.reading import DELIMITERS, open_binary, refuse_utf16

KnownFormat = Literal[
    "profile",
    "kineto",
    "horovod-timeline",
    "execution-trace",
    "chakra",
    "layers",
    "pipedream",
    "parameters",
    "cost-log",
]

SNIFFED_BYTES = 1 << 16
# The length of the first message, its first field, and in it the version of the schema.
_CHAKRA = re.compile(rb"[\x80-\xff]{0,3}[\0-\x7f]\n[\x01-\x20][0-9][0-9.]*")
_PIPEDREAM = re.compile(rb"^\s*\S+ -- ")
_PARAMETERS = re.compile(rb'^\s*\[\s*\[\s*"')
_XPLANE = re.compile(rb"^\n[\s\S]{1,40}?(/host:|/device:|Task Environment)")
_COST_LOG = (b"busbw", b'"bus_bw"', b"# OSU ", b"OSU MPI")
_KINETO = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"distributedInfo"')
_RECORD = "Record the training with torch.profiler and run `pace headroom TRACE.json`"
_TABLE = (
    "put the layers' times into a table and run `pace import layers TABLE.csv --workers N --bandwidth-gbps G`"
)
# ZIP, gzip within gzip, bzip2, xz, Zstandard and 7z.
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd", b"7z\xbc\xaf")
# What a file of another tool holds, what the tool is, and what to do next.
_FOREIGN: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    (
        (b"SQLite format 3\0",),
        "a database of Nsight Systems or rocpd, with kernels and no operators",
        f"{_RECORD}.",
    ),
    (
        (b'"TraceProcessEvent"', b'"CudaEvent"', b"Total Time (ns)", b"Start (ns)"),
        "an export or a table of Nsight Systems, with kernels and no operators",
        f"{_RECORD}.",
    ),
    ((b"rocprofiler", b"rocprofv"), "a trace of rocprof, with kernels and no operators", f"{_RECORD}."),
    ((b'"KernelName"', b"Kernel_Name"), "a table of rocprof, with kernels and no operators", f"{_RECORD}."),
    ((b'"BeginNs"', b'"HipApi'), "a trace of rocprof, with kernels and no operators", f"{_RECORD}."),
    (
        (b'"highres-ticks"', b'"/device:TPU', b'"/host:CPU"'),
        "a JAX (XLA) trace",
        f"XLA's ops are not read: {_TABLE}.",
    ),
    (
        (b'"pid": "CPU functions"', b'"pid": "CUDA functions"'),
        "a trace of torch.autograd.profiler before PyTorch 1.8, whose events have no categories",
        f"{_RECORD}.",
    ),
    (
        (b"Comm. Op ", b"Comm. Op\t"),
        "DeepSpeed's summary of communication, which has no operators and no order",
        f"{_RECORD}. For the cost of all-reduces run nccl-tests, and `pace fit` on its output.",
    ),
    (
        (b"---- Performance of ",),
        "the output of ds_bench, DeepSpeed's benchmark of collectives",
        "Run nccl-tests, and `pace fit` on its output.",
    ),
    (
        (b'"collective_seq_id"', b'"pg_status"'),
        "a dump of PyTorch's flight recorder, which has no operators",
        f"To see whether ranks wait for one another, run `pace check-order` on all ranks' dumps. {_RECORD}.",
    ),
    (
        (b'"in_msg_size"',),
        "a trace of PARAM's communication, which has no operators",
        f"{_RECORD}.",
    ),
    (
        (b'"workload_graph"',),
        "a Chakra trace as JSON",
        "Pass the trace (.et) that it was made from.",
    ),
    (
        (b"speedscope.app", b'"exporter":"py-spy'),
        "samples of a stack profiler, which have no operators",
        f"{_RECORD}.",
    ),
)


def tell_format(path: str | Path) -> KnownFormat:
    """Return the format of a file.

    Raises
    ------
    FormatError
        If it is of no known tool, or of one whose files are not read: the reason names it.
    """
    return format_of(head_of(path), path, Path(path).name)


def head_of(path: str | Path) -> bytes:
    """Return the beginning of a file, from which its format is told."""
    with open_binary(path) as file:
        return file.read(SNIFFED_BYTES)


def format_of(head: bytes, path: str | Path, filename: str) -> KnownFormat:
    """Return the format of a file that begins with `head`; errors name `path`.

    Raises
    ------
    FormatError
        If neither name nor content tells the format.
    """
    if head.startswith(_ARCHIVES) or head[257:262] == b"ustar":
        raise FormatError(path, "this is an archive: unpack it, and pass the files in it")
    refuse_utf16(head, path)
    ending = filename.lower().removesuffix(".gz").rpartition(".")[2]
    if ending in ("nsys-rep", "qdrep"):
        raise FormatError(path, f"this is a report of Nsight Systems, without operators. {_RECORD}.")
    start = head.removeprefix(UTF8_MARK).lstrip()
    if not start:
        raise FormatError(path, "the file is empty")
    if start[:14].lower().startswith((b"<!doctype html", b"<html")):
        raise FormatError(path, "this is a web page: download the file itself")
    told = _json_format(start) if start[:1] in (b"{", b"[") else None
    if told is not None and told != "profile":
        return told
    refuse_foreign(head, path)
    if told is not None:
        return told
    if any(mark in head for mark in _COST_LOG):
        return "cost-log"
    if _PIPEDREAM.match(start):
        return "pipedream"
    if ending == "csv":
        return "layers"
    if ending in ("et", "chakra"):
        return "chakra"
    first_line = start.splitlines()[0]
    is_table = any(mark in first_line for mark in DELIMITERS.encode())
    if is_table and b"name" in first_line and b"\0" not in first_line:
        return "layers"
    if _CHAKRA.match(head):
        return "chakra"
    raise FormatError(
        path, "neither its name nor its content tells the format: choose one (see `pace import --help`)"
    )


def _json_format(start: bytes) -> KnownFormat | None:
    """Return the format of JSON: "profile" if nothing says otherwise, None for tools that are not read."""
    if _PARAMETERS.match(start):
        return "parameters"
    if b'"schema_version"' in start and b'"traceEvents"' not in start:
        return "profile"
    if any(mark in start for mark in (b"NEGOTIATE_", b'"process_sort_index"')) and b'"cpu_op"' not in start:
        return "horovod-timeline" if start[:1] == b"[" or b"NEGOTIATE_" in start else "kineto"
    if any(mark in start for marks, _, _ in _FOREIGN for mark in marks) and b'"cpu_op"' not in start:
        return None
    if start[:1] == b"[":
        # A bare list of events: Kineto's have categories, Horovod's have none.
        return "kineto" if b'"cat"' in start else "horovod-timeline"
    if any(mark in start for mark in _KINETO):
        return "kineto"
    if b'"nodes"' in start and b'"schema"' in start:
        return "execution-trace"
    if b'"bus_bw"' in start or b'"redop"' in start:
        return "cost-log"
    return "profile"


def refuse_foreign(head: bytes, path: str | Path) -> None:
    """Raise FormatError for a file that begins like one of a tool that is not read; it names the tool."""
    for marks, what, following in _FOREIGN:
        if any(mark in head for mark in marks):
            raise FormatError(path, f"this is {what}. {following}")
    if _XPLANE.match(head):
        raise FormatError(path, f"this is a JAX (XLA) profile, an xplane. XLA's ops are not read: {_TABLE}.")
