"""Files of every tool are known by their content: read, or named with what to do next."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.errors import FormatError
from pace.formats.any_format import read_any
from pace.formats.kineto import read_kineto
from pace.formats.recognize import tell_format
from tests.pace.formats.test_cost_logs import NCCL_HEADER, NCCL_ROWS, OSU
from tests.pace.formats.test_layers import CSV, GRAPH
from tests.pace.formats.traces import (
    chakra_trace,
    execution_trace_document,
    horovod_events,
    kineto_document,
    kineto_events,
    write_json,
)

COST = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)
_XPLANE = b"\n\x8a\x01\x08\x02\x12\x09/host:CPU" + bytes(120)


@pytest.mark.parametrize(
    ("told", "document"),
    [
        ("kineto", kineto_document(kineto_events())),
        ("kineto", kineto_events()),
        ("horovod-timeline", horovod_events()),
        ("execution-trace", execution_trace_document()),
        ("parameters", [["weight", [10, 20], "torch.float32"]]),
        ("profile", {"schema_version": 1, "name": "x"}),
        ("cost-log", {"args": ["all_reduce_perf"], "results": [{"size": 8, "redop": "sum"}]}),
    ],
)
def test_json_is_told_by_its_fields(tmp_path: Path, told: str, document: object) -> None:
    """Whatever the file's name, gzipped or not."""
    path = write_json(tmp_path / "file", document)
    assert tell_format(path) == told
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert tell_format(path) == told


@pytest.mark.parametrize(
    ("told", "content"),
    [
        ("cost-log", (NCCL_HEADER + NCCL_ROWS).encode()),
        ("cost-log", OSU.encode()),
        ("layers", CSV.encode()),
        ("pipedream", GRAPH.encode()),
        ("chakra", chakra_trace()),
    ],
)
def test_other_files_are_told_by_their_text(tmp_path: Path, told: str, content: bytes) -> None:
    """Tables, logs and protocol buffers."""
    path = tmp_path / "file"
    path.write_bytes(content)
    assert tell_format(path) == told


def test_a_file_that_is_no_json_is_no_kineto_trace(tmp_path: Path) -> None:
    """Also where the format is given: the tool is named, or what was expected."""
    path = tmp_path / "trace.json"
    for content, reason in (
        (b"SQLite format 3\0" + bytes(80), "Nsight Systems"),
        (CSV.encode(), "no JSON: expected a Kineto trace"),
        (b"", "no JSON: expected a Kineto trace"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=reason):
            read_kineto([path])


def test_a_report_of_nsight_systems_is_known_by_its_name(tmp_path: Path) -> None:
    """It has no text in it."""
    (path := tmp_path / "run.nsys-rep").write_bytes(bytes(100))
    with pytest.raises(FormatError, match=r"a report of Nsight Systems.* torch.profiler"):
        tell_format(path)


def test_a_path_of_no_file_is_no_command(tmp_path: Path) -> None:
    """A name with a mistake in it, or a folder."""
    for path in (tmp_path / "tarce.json", tmp_path):
        asked = ["import", str(path), "-o", str(tmp_path / "p.json")]
        done = CliRunner().invoke(app, asked, env={"COLUMNS": "300"})
        assert done.exit_code != 0
        assert str(path) in done.output
        assert "No such command" not in done.output


def test_a_graph_that_is_called_a_table_is_a_graph(tmp_path: Path) -> None:
    """Content goes before the name."""
    (path := tmp_path / "graph.csv").write_text(GRAPH)
    assert tell_format(path) == "pipedream"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_XPLANE, "JAX .*pace import layers"),
        (
            b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[]}',
            "JAX .*pace import layers",
        ),
        (b'{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "rocprof.* torch.profiler"),
        (b'"Index","KernelName","gpu-id"\n1,"k",0\n', "rocprof.* torch.profiler"),
        (b"SQLite format 3\0" + bytes(80), "Nsight Systems .* torch.profiler"),
        (b'{"data":["a"]}\n{"Type":79,"CudaEvent":{"startNs":"1"}}\n', "Nsight Systems.* torch.profiler"),
        (b"Time (%),Total Time (ns),Instances,Name\n5,1,1,k\n", "a table of Nsight Systems.* torch.profiler"),
        (
            b'[{"name": "conv2d", "ph": "X", "ts": 1.0, "dur": 1.0, "tid": 0, "pid": "CPU functions"}]',
            "torch.autograd.profiler before .* torch.profiler",
        ),
        (b"Comm. Op            Message Size        Count\nall_reduce\n", "DeepSpeed's summary .*pace fit"),
        (b'{"version":"2.10","pg_status":{},"entries":[]}', "flight recorder.*pace check-order"),
        (b'[{"comms":"all_reduce","in_msg_size":9,"world_size":8}]', "PARAM's comm.* torch.profiler"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 5\n", "pointer of Git LFS .* fetch"),
        (b"/annex/objects/SHA256E-s5--00.json\n", "pointer of git-annex .* fetch"),
        (gzip.compress(bytes(257) + b"ustar\x0000" + bytes(248), mtime=0), "an archive: unpack it"),
        (b"PK\x03\x04" + bytes(26), "an archive: unpack it"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "an archive: unpack it"),
        (lzma.compress(b"{}"), "an archive: unpack it"),
        (b"(\xb5/\xfd" + bytes(26), "an archive: unpack it"),
        (b"\n<!DOCTYPE html>\n<html>", "a web page: download the file itself"),
        ("# nThread 1 busbw".encode("utf-16"), "UTF-16: save it in UTF-8"),
        (b"", "the file is empty"),
        (b"nothing of a kind", "neither its name nor its content"),
    ],
)
def test_files_of_other_tools_are_named_with_what_to_do_next(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """Not a parser's error."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        read_any([path])


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Spreadsheets and editors put it before texts in UTF-8."""
    files = {
        "layers.csv": CSV,
        "graph.txt": GRAPH,
        "trace.json": json.dumps(kineto_document(kineto_events())),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        plain = read_any([path], workers=2, allreduce=COST)
        path.write_text(text, encoding="utf-8-sig")
        assert read_any([path], workers=2, allreduce=COST) == plain


def test_headroom_and_import_take_any_file(tmp_path: Path) -> None:
    """Without a format's name; the traces of ranks together with what gives their sizes."""
    run = CliRunner()
    made = tmp_path / "p.json"
    timeline = write_json(tmp_path / "t", horovod_events())
    done = run.invoke(app, ["import", str(timeline), "-o", str(made)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("job          Horovod (certain")
    answer = run.invoke(app, ["headroom", str(timeline)])
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("Horovod (certain")
    assert "DistributedDataParallel" not in answer.stdout
    trace = write_json(tmp_path / "r", kineto_document(kineto_events(shapes=False)))
    shapes = write_json(tmp_path / "s", execution_trace_document())
    assert run.invoke(app, ["import", str(trace), str(shapes), "-o", str(made)]).exit_code == 0
    table = tmp_path / "layers.csv"
    table.write_text(CSV)
    page = tmp_path / "page.html"
    wanted = ["headroom", str(table), "--workers", "8", "--bandwidth-gbps", "10", "--html", str(page)]
    assert run.invoke(app, wanted).exit_code == 0
    refused = run.invoke(app, ["headroom", str(table)])
    assert refused.exit_code == 1
    assert "--bandwidth-gbps" in refused.output
