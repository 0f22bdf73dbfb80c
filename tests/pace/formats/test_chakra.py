"""Chakra traces, byte by byte."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.errors import FormatError
from pace.formats.any_format import read_any
from pace.formats.chakra import read_chakra
from pace.formats.reading import FormatWarning
from tests.pace.formats.traces import chakra_trace, generated_chakra_trace, write_json


@pytest.mark.parametrize("device", [False, True])
def test_durations_of_kernels_or_of_ops_by_hand(tmp_path: Path, device: bool) -> None:
    """The kernels that an op launched are its duration; without kernels, the host's own times are.

    The update's 50 us go to the ops that made the parameters' nodes, by bytes: 800 and 40 of 840.
    """
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace(device=device))
    profile = read_chakra(path, workers=2)
    assert {op.name: round(op.duration_s * 1e6, 6) for op in profile.ops} == {
        "bwd/000.ReluBackward0": 30,
        "bwd/001.AddmmBackward0": 200,
        "bwd/002.TBackward0": 0,
        "fwd/001.t": round(50 * 800 / 840, 6),
        "fwd/002.addmm": round(100 + 50 * 40 / 840, 6),
        "fwd/003.relu": 20,
    }
    assert [(g.name, g.size_bytes, g.producer) for g in profile.gradients] == [
        ("002.addmm/0", 40, "bwd/001.AddmmBackward0"),
        ("001.t/0", 800, "bwd/002.TBackward0"),
    ]
    assert profile.metadata["clock"] == ("device" if device else "host")


def test_the_shortest_call_of_each_size_is_the_cost(tmp_path: Path) -> None:
    """One rank cannot tell waiting from sending, but 4 bytes take no longer than 840."""
    path = tmp_path / "trace.et.gz"
    path.write_bytes(gzip.compress(chakra_trace()))
    profile = read_chakra(path, workers=2)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({4: 70e-6, 840: 70e-6})
    given = AffineAllReduce(latency_s=1.0, seconds_per_byte=0.0)
    assert read_chakra(path, workers=2, allreduce=given).allreduce == given


def test_all_reduces_of_several_groups_are_no_cost(tmp_path: Path) -> None:
    """Those of tensor parallelism take another time than those that sum gradients; a given cost will do."""
    (path := tmp_path / "trace.et").write_bytes(chakra_trace(groups="010"))
    with pytest.raises(FormatError, match=r"process groups '0' and '1' were recorded.* give the cost"):
        read_chakra(path, workers=2)
    given = AffineAllReduce(latency_s=1.0, seconds_per_byte=0.0)
    assert read_chakra(path, workers=2, allreduce=given).allreduce == given


def test_a_size_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    """As for attributes of other types: what is left are the collectives whose sizes are numbers."""
    (path := tmp_path / "trace.et").write_bytes(chakra_trace(reduced_bytes="840"))
    assert dict(read_chakra(path, workers=2).allreduce.model_dump()["samples"]) == {4: 600e-6}


BEGINNING = b"\x07\x0a\x050.0.4"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no nodes"),
        (BEGINNING, "no nodes"),
        (b"\x04text", "byte 0: this is not how a Chakra trace begins"),
        (chakra_trace()[:200], r"byte \d+: the file ends within a message"),
        (BEGINNING + b"\xff", "byte 8: the file ends within a message"),
        (BEGINNING + b"\xff" * 12, "byte 8: this is not a node of a Chakra trace: Too many bytes"),
        (BEGINNING + b"\xff\xff\xff\xff\x0f", "byte 8: a message of 4294967295 bytes"),
        (BEGINNING + b"\x02\x12\x05", "byte 8: this is not a node of a Chakra trace"),
        (BEGINNING + b"\x02\x08\x05\x02\x08\xff", "byte 11: this is not a node of a Chakra trace"),
        (BEGINNING + b"\x03\x3a\x01\x05", "byte 8: .*: duration_micros is not of the schema's type"),
        (BEGINNING + b"\x04\x52\x02\x4a\x00", "byte 8: .*: int64_val is not of the schema's type"),
        (BEGINNING + b"\x02\x08\x05\x02\x08\x05", "byte 11: .*: two nodes have the id 5"),
        (BEGINNING + b"\x02\x08\x05", "no step with a forward and a backward pass"),
    ],
)
def test_what_is_no_chakra_trace_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """With the byte at which the message at fault begins."""
    path = tmp_path / "trace.et"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        read_chakra(path, workers=2)


def test_a_generated_trace_is_named_with_what_to_do_next(tmp_path: Path) -> None:
    """Its nodes are no operators; that is said before anything is asked for that would not help."""
    path = tmp_path / "trace.0.et"
    path.write_bytes(generated_chakra_trace())
    with pytest.raises(FormatError, match=r"generator .* 8 nodes .*COMP_NODE_0.*pace import layers"):
        read_any([path])


def test_micro_batches_are_refused(tmp_path: Path) -> None:
    """Each gradient would be there twice, and the second forward pass would be part of the backward pass."""
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace(micro_batches=2))
    with pytest.raises(FormatError, match="2 backward passes over the same 2 gradients"):
        read_chakra(path, workers=2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"c10d::allreduce_", b"c10d::send______", "pipeline parallel .*1 sends and receives"),
        (b"AccumulateGrad", b"AccumulateNone", "no gradient is accumulated"),
    ],
)
def test_a_job_that_sums_no_gradients_is_refused(tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    """As its Kineto trace is; more kinds are tried with execution traces."""
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace().replace(old, new))
    with pytest.raises(FormatError, match=reason):
        read_chakra(path, workers=2)


def test_an_impossible_size_is_refused_with_the_files_name(tmp_path: Path) -> None:
    """An all-reduce of 2^60 bytes."""
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace(reduced_bytes=1 << 60))
    with pytest.raises(FormatError, match=r"trace\.et: makes no valid profile: samples"):
        read_chakra(path, workers=2)


def test_a_trace_of_json_is_named_with_what_to_do_next(tmp_path: Path) -> None:
    """Chakra's tools write it for people; it has no attributes of nodes."""
    path = write_json(
        tmp_path / "trace.json", {"workload_graph": [{"Id": 2, "Name": "aten::mm", "NodeType": 4}]}
    )
    with pytest.raises(FormatError, match=r"a Chakra trace as JSON.*\.et"):
        read_any([path])


def test_an_import_by_content_tells_what_it_found(tmp_path: Path) -> None:
    """The report has no lines that are of Kineto traces only."""
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace())
    done = CliRunner().invoke(app, ["import", str(path), "--workers", "2", "-o", str(tmp_path / "p.json")])
    assert done.exit_code == 0, done.output
    assert "gradients    2, 840 bytes, the largest 800; 2 workers" in done.stdout


def test_the_number_of_workers_is_asked_for(tmp_path: Path) -> None:
    """A Chakra trace does not say it."""
    path = tmp_path / "trace.0.et"
    path.write_bytes(chakra_trace())
    with pytest.raises(FormatError, match="--workers"):
        read_any([path])
    assert read_any([path], workers=3).workers == 3


def test_another_schema_is_read_with_a_warning(tmp_path: Path) -> None:
    """Fields keep their numbers between versions, but none promises that they mean the same."""
    path = tmp_path / "trace.et"
    path.write_bytes(chakra_trace().replace(b"0.0.4", b"0.0.5", 1))
    with pytest.warns(FormatWarning, match=r"schema '0.0.5' is not the one that was tested \(0.0.4\)"):
        assert len(read_chakra(path, workers=2).gradients) == 2


def test_without_protobuf_the_extra_is_named(tmp_path: Path) -> None:
    """The command ends with one line that says what to install; a process without the package shows it."""
    trace = tmp_path / "trace.et"
    trace.write_bytes(chakra_trace())
    program = "import sys; sys.modules['google'] = None; from pace.cli import app; app()"
    arguments = ["import", "chakra", str(trace), "--workers", "2", "-o", str(tmp_path / "profile.json")]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert 'pip install "pace-scheduler[chakra]"' in done.stderr
    assert "Traceback" not in done.stderr
