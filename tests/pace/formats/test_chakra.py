"""Chakra traces, byte by byte."""

import gzip
from pathlib import Path

import pytest

from pace.allreduce import AffineAllReduce
from pace.errors import FormatError
from pace.formats.chakra import read_chakra
from pace.formats.wire import parse_message, signed, unpacked
from tests.pace.formats.traces import chakra_trace


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
    """One rank cannot tell waiting from sending. A given cost takes its place."""
    path = tmp_path / "trace.et.gz"
    path.write_bytes(gzip.compress(chakra_trace()))
    profile = read_chakra(path, workers=2)
    assert profile.allreduce.model_dump()["samples"] == ((840.0, pytest.approx(70e-6)),)
    given = AffineAllReduce(latency_s=1.0, seconds_per_byte=0.0)
    assert read_chakra(path, workers=2, allreduce=given).allreduce == given


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no nodes"),
        (chakra_trace()[:200], r"byte \d+: the file ends within a message"),
        (b"\x01\x00" + b"\xff" * 12, "byte 2: not a length: more than ten bytes"),
        (b"\x01\x00" + b"\xff\xff\xff\xff\x0f", "byte 2: a message of 4294967295 bytes"),
        (b"\x01\x00\x02\x0b\x00", "byte 2: not a Chakra node: unknown wire type 3"),
        (b"\x01\x00\x02\x12\x05", "byte 2: not a Chakra node: a field is longer than its message"),
        (b"\x01\x00\x02\x08\xff", "byte 2: not a Chakra node: a number does not end"),
        (b"\x01\x00\x02\x08\x05", "no step with a forward and a backward pass"),
    ],
)
def test_what_is_no_chakra_trace_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """With the byte at which the message at fault begins."""
    path = tmp_path / "trace.et"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        read_chakra(path, workers=2)


def test_every_wire_type_is_read() -> None:
    """Field 1 a varint above 2^32 and one below 0, field 2 a double, field 3 a float, field 4 text."""
    message = (
        b"\x08\x80\x80\x80\x80\x20"
        + b"\x08"
        + b"\xff" * 9
        + b"\x01"
        + b"\x11\x00\x00\x00\x00\x00\x00\xf8\x3f"
        + b"\x1d\x00\x00\x20\x40"
        + b"\x22\x02ok"
    )
    fields = parse_message(message)
    assert fields == {1: [2**33, 2**64 - 1], 2: [1.5], 3: [2.5], 4: [b"ok"]}
    assert signed(2**64 - 1) == -1
    assert unpacked([7, b"\x01\x80\x01"]) == [7, 1, 128]
