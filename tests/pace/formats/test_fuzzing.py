"""Damaged files: whatever is done to them, an importer gives a valid result or a FormatError."""

import io
import json
import os
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile, parse_profile
from pace.errors import FormatError
from pace.formats.chakra import read_chakra, stream_nodes
from pace.formats.cost_log import CostLog
from pace.formats.fit import read_cost_csv, read_osu
from pace.formats.horovod_timeline import read_horovod_cost, read_horovod_profile
from pace.formats.kineto import read_kineto
from pace.formats.layers import read_layer_csv
from pace.formats.nccl_tests import read_nccl_tests
from pace.formats.pipedream import read_pipedream
from pace.formats.reading import FormatWarning
from pace.formats.shaped_steps import read_execution_trace_profile
from tests.pace.formats.kineto_features import (
    all_to_all_events,
    gloo_all_to_all_events,
    launched_events,
    reentrant_events,
    rounded_events,
)
from tests.pace.formats.test_cost_logs import NCCL_HEADER, NCCL_ROWS, OSU
from tests.pace.formats.test_layers import CSV, GRAPH
from tests.pace.formats.traces import (
    chakra_trace,
    execution_trace_document,
    horovod_events,
    kineto_document,
    kineto_events,
    shaped_execution_trace,
)

COST = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)
NASTY = ["", "-1", "1e400", "nan", "9" * 40, "\x00", "x", "0", "1e-320", "-0.0", "\u20ac", ";", "\t"]

Result = Profile | CostLog
Reader = Callable[[Path], Result]

TEXTS: dict[str, tuple[str, Reader]] = {
    "nccl-tests": (NCCL_HEADER + NCCL_ROWS, read_nccl_tests),
    "osu": (OSU, read_osu),
    "cost csv": ("bytes,seconds,workers\n1024,0.5,8\n2048,0.75,8\n", read_cost_csv),
    "layer csv": (CSV, lambda path: read_layer_csv(path, workers=4, allreduce=COST)),
    "graph.txt": (GRAPH, lambda path: read_pipedream(path, workers=4, allreduce=COST)),
}

DOCUMENTS: dict[str, tuple[Any, Reader]] = {
    "kineto": (kineto_document(kineto_events(steps=2)), lambda path: read_kineto([path])),
    "kineto on the host's clock": (
        kineto_document(kineto_events(steps=1, device=False)),
        lambda path: read_kineto([path], allreduce=COST),
    ),
    "kineto, hybrid clock": (
        kineto_document(launched_events()),
        lambda path: read_kineto([path], clock="hybrid"),
    ),
    "kineto, other collectives": (
        kineto_document(all_to_all_events()),
        lambda path: read_kineto([path]),
    ),
    "kineto, Gloo's other collectives": (
        kineto_document(gloo_all_to_all_events()),
        lambda path: read_kineto([path], allreduce=COST),
    ),
    "kineto, reentrant checkpoints": (
        kineto_document(reentrant_events()),
        lambda path: read_kineto([path], allreduce=COST),
    ),
    "kineto, rounded and early": (
        kineto_document(rounded_events()),
        lambda path: read_kineto([path]),
    ),
    "horovod": (horovod_events(), read_horovod_profile),
    "horovod cost": (horovod_events(iterations=2), read_horovod_cost),
    "execution trace": (
        shaped_execution_trace(),
        lambda path: read_execution_trace_profile(path, device_tflops=1.0, workers=4, allreduce=COST),
    ),
    "nccl-tests -J": (
        {
            "args": ["all_reduce_perf"],
            "config": {"devices": [{"rank": 0}, {"rank": 1}]},
            "results": [{"size": 8, "redop": "sum", "in_place": {"time": 3.0}, "out_of_place": None}],
        },
        read_nccl_tests,
    ),
}


def _check(folder: Path, content: bytes, reader: Reader) -> None:
    path = folder / "file"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            result = reader(path)
        except FormatError as error:
            assert str(folder) in str(error)  # noqa: PT017 - a refusal is one of two good outcomes
            return
    if isinstance(result, Profile):
        assert parse_profile(result.to_json()).sha256 == result.sha256
        assert result.ops
    else:
        assert result.samples
        assert all(size > 0 and 0 <= seconds < 1e300 for size, seconds in result.samples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples; each overwrites the file."""
    return tmp_path_factory.mktemp("fuzz")


# The same few examples each time; a number in PACE_RANDOM_FILES searches as many anew.
_SEARCHED = os.environ.get("PACE_RANDOM_FILES")
_SETTINGS = settings(
    deadline=None,
    max_examples=int(_SEARCHED or 15),
    derandomize=_SEARCHED is None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("kind", TEXTS)
@_SETTINGS
@given(data=st.data())
def test_damaged_tables(folder: Path, kind: str, data: st.DataObject) -> None:
    """Cut off, a cell replaced, a line repeated or removed, bytes overwritten."""
    text, reader = TEXTS[kind]
    lines = text.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["cell", "repeat", "remove", "cut"])):
            case "cell":
                cells = lines[place].replace(",", " , ").split(" ")
                cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(st.sampled_from(NASTY))
                lines[place] = " ".join(cells).replace(" , ", ",")
            case "repeat":
                lines.insert(place, lines[data.draw(st.integers(0, len(lines) - 1))])
            case "remove" if len(lines) > 1:
                del lines[place]
            case _:
                lines[place] = lines[place][: data.draw(st.integers(0, len(lines[place])))]
    content = bytearray("".join(lines).encode())
    for _ in range(data.draw(st.integers(0, 2))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    _check(folder, bytes(content), reader)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([1e308, -1.5, 0.0, 5e-324]),
    st.sampled_from(["", "x", "NaN", "[1, 2]", "float32"]),
    st.just([]),
    st.just({}),
    st.just([[[1]]]),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        children = list(enumerate(value))
    found = [(*path, key) for key, _ in children]
    for key, child in children:
        found += _places(child, (*path, key))
    return found


@pytest.mark.parametrize("kind", DOCUMENTS)
@_SETTINGS
@given(data=st.data())
def test_damaged_documents(folder: Path, kind: str, data: st.DataObject) -> None:
    """Values of wrong types, huge numbers, duplicated and missing ids and events; then perhaps cut off."""
    original, reader = DOCUMENTS[kind]
    document = json.loads(json.dumps(original))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(_places(document)))
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        match data.draw(st.sampled_from(["change", "remove", "repeat"])):
            case "remove":
                del parent[place[-1]]
            case "repeat" if isinstance(parent, list):
                parent.insert(data.draw(st.integers(0, len(parent))), deepcopy(parent[place[-1]]))
            case _:
                parent[place[-1]] = deepcopy(data.draw(_VALUES))
        if not document:
            break
    content = json.dumps(document).encode()
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    _check(folder, content, reader)


@pytest.mark.parametrize("kind", [*TEXTS, *DOCUMENTS])
@_SETTINGS
@given(content=st.binary(max_size=300))
def test_any_bytes(folder: Path, kind: str, content: bytes) -> None:
    """Nothing that is read is assumed to be text, JSON or gzip."""
    _, reader = TEXTS[kind] if kind in TEXTS else DOCUMENTS[kind]
    _check(folder, content, reader)


@_SETTINGS
@given(data=st.data())
def test_damaged_chakra_traces(folder: Path, data: st.DataObject) -> None:
    """Bytes overwritten, inserted and removed in a stream of messages; then perhaps cut off."""
    content = bytearray(chakra_trace(device=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["change", "insert", "remove"])):
            case "change":
                content[place] = data.draw(st.integers(0, 255))
            case "insert":
                content[place:place] = data.draw(st.binary(min_size=1, max_size=12))
            case _:
                del content[place : place + data.draw(st.integers(1, 20))]
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    _check(folder, bytes(content[:cut]), lambda path: read_chakra(path, workers=2))


@_SETTINGS
@given(data=st.data())
def test_wrong_values_in_chakra_traces(folder: Path, data: st.DataObject) -> None:
    """Messages that protobuf accepts: ids twice or huge, cycles, fields without a value, negative sizes."""
    original = chakra_trace(device=data.draw(st.booleans()))
    path = folder / "nodes"
    path.write_bytes(original)
    nodes = [node for _, node in stream_nodes(path)]
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(nodes))
        number = data.draw(st.sampled_from([0, 1, 5, 13, 2**40, 2**63, 2**64 - 1]))
        match data.draw(st.sampled_from(["id", "type", "duration", "deps", "attribute", "shape", "move"])):
            case "id":
                node.id = number
            case "type":
                node.type = data.draw(st.integers(-1, 9))
            case "duration":
                node.duration_micros = number
            case "deps":
                node.data_deps[:] = [number, node.id]
            case "attribute" if node.attr:
                attribute = data.draw(st.sampled_from(list(node.attr)))
                attribute.int64_val = data.draw(st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]))
            case "shape":
                node.inputs.shapes = data.draw(
                    st.sampled_from(["", "[", "[[]]", "[[-1]]", "[[99999999999]]", "{}"])
                )
            case _:
                nodes.remove(node)
                nodes.insert(data.draw(st.integers(0, len(nodes))), node)
    content = io.BytesIO()
    content.write(original[: original[0] + 1])  # the message that describes the file
    for node in nodes:
        serialize_length_prefixed(node, content)
    _check(folder, content.getvalue(), lambda path: read_chakra(path, workers=2))


@_SETTINGS
@given(data=st.data())
def test_damaged_execution_traces_beside_a_good_kineto_trace(folder: Path, data: st.DataObject) -> None:
    """The joined file is held to the same."""
    (folder / "kineto.json").write_text(json.dumps(kineto_document(kineto_events(steps=1, shapes=False))))
    document = execution_trace_document(steps=1)
    place = data.draw(st.sampled_from(_places(document)))
    parent: Any = document
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = data.draw(_VALUES)
    _check(
        folder,
        json.dumps(document).encode(),
        lambda path: read_kineto([folder / "kineto.json"], execution_trace=path),
    )
