"""TensorFlow's traces: what TensorFlow 2.21 recorded, and what is wrong with others, in one line."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pace import FormatError, StepsDocument
from pace.formats.reading import FormatWarning
from pace_servers import read_tf_run_metadata
from pace_servers.throughput import simulate_steps
from pace_servers.throughput.recorded_steps import replay_error

# Made by `python -m benchmarks throughput record`: four layers over a link of 50 Mb/s.
RECORDED = Path(__file__).parents[1] / "throughput" / "recorded"
ONE_SERVER = RECORDED / "tensorflow-2.21-one-server.json.gz"
TWO_SERVERS = RECORDED / "tensorflow-2.21-two-servers.json.gz"
RATE = 5.98e6
LAYERS = {"layer0": 800_000, "layer1": 100_000, "layer2": 400_000, "layer3": 200_000}


def runs(path: Path = ONE_SERVER) -> list[dict[str, Any]]:
    """Return the recorded RunMetadata."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def read(tmp_path: Path, found: Any) -> StepsDocument:
    """Write and read RunMetadata."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(found))
    return read_tf_run_metadata([path], bytes_per_s=RATE)


def transfers(steps: StepsDocument, resource: str) -> dict[str | None, int | None]:
    """Return the sizes of the parameters that are moved in one direction."""
    return {op.parameter: op.size_bytes for op in steps.ops if op.resource == resource and op.parameter}


def test_a_recorded_training() -> None:
    """Every layer is pulled and pushed with its exact size; compute hangs between."""
    steps = read_tf_run_metadata([ONE_SERVER], bytes_per_s=RATE, batch=32)
    assert transfers(steps, "downlink") == LAYERS
    assert transfers(steps, "uplink") == LAYERS
    assert steps.batch == 32
    assert steps.metadata == {"source": "tf-run-metadata", "steps_read": 8, "steps_dropped": 0}
    deps = {op.name: op.deps for op in steps.ops}
    assert "worker/forward0" in deps["worker/forward1"]
    assert {op.resource for op in steps.ops if not op.deps} == {"worker"}


@pytest.mark.parametrize("path", [ONE_SERVER, TWO_SERVERS])
@pytest.mark.filterwarnings("ignore::pace.formats.reading.FormatWarning")
def test_recorded_steps_are_replayed(path: Path) -> None:
    """Simulated alone, steps last as long as they did: 3 % in the median, on a machine that was not quiet."""
    steps = read_tf_run_metadata([path], bytes_per_s=RATE)
    error = replay_error(steps)
    assert error is not None
    assert error < 0.03
    down = [at for at, op in enumerate(steps.ops) if op.resource == "downlink" and op.size_bytes]
    errors = []
    for number, step in enumerate(steps.steps):
        assert step.start_s is not None
        run = simulate_steps(steps, 1, steps=1, skip=0, drawn=[[number]], num_recorded=1)
        recorded = np.add(step.start_s, step.duration_s)[down]
        errors += np.abs(run.op_end_s[0, 0, down] / recorded - 1).tolist()
    assert np.median(errors) < 0.04


def test_pulls_start_when_they_did() -> None:
    """Each waits for an op that takes until its server had it ready, in every step."""
    steps = read_tf_run_metadata([ONE_SERVER], bytes_per_s=RATE)
    place = {op.name: at for at, op in enumerate(steps.ops)}
    pulls = [op for op in steps.ops if op.resource == "downlink" and op.parameter in LAYERS]
    assert len(pulls) == len(LAYERS)
    for pull in pulls:
        (asking,) = pull.deps
        assert steps.ops[place[asking]].deps == ()
        for step in steps.steps:
            assert step.start_s is not None
            assert step.duration_s[place[asking]] == step.start_s[place[pull.name]] > 0


# The recording has layers 2, 0, 3 and 1, in this order, both when they were ready and when they came.
@pytest.mark.parametrize(
    ("changed", "order"),
    [
        ({}, (2, 0, 3, 1)),
        ({3: (199, 99_800), 0: (178, 233_200)}, (2, 3, 0, 1)),
        ({3: (178, 99_800), 0: (178, 233_200), 1: (0, 248_000)}, (2, 3, 0, 1)),
        ({3: (170, 231_400), 0: (178, 232_000)}, (2, 0, 3, 1)),
        ({3: (50_000, 100_000)}, (2, 0, 1, 3)),
    ],
    ids=["as ready", "sent before", "ready at once", "unpacked sooner", "ready much later"],
)
def test_pulls_start_in_the_order_in_which_they_were_sent(
    tmp_path: Path, changed: dict[int, tuple[int, int]], order: tuple[int, ...]
) -> None:
    """Of tensors that are ready within milliseconds the ends tell; large ones may be unpacked last."""
    found = runs()[:1]
    rows = {
        int(row["timelineLabel"].partition("ReadVariableOp")[2].partition(" ")[0].strip("_") or 0): row
        for device in found[0]["stepStats"]["devStats"]
        for row in device["nodeStats"]
        if row["nodeName"] == "RecvTensor" and "ReadVariableOp" in row["timelineLabel"]
    }
    began = int(rows[2]["allStartMicros"])
    for layer, (start, end) in changed.items():
        rows[layer] |= {"allStartMicros": str(began + start), "allEndRelMicros": str(end - start)}
    steps = read(tmp_path, found)
    (step,) = steps.steps
    assert step.start_s is not None
    pulls = {
        op.parameter: at for at, op in enumerate(steps.ops) if op.parameter and op.resource == "downlink"
    }
    start_s = {layer: step.start_s[pulls[f"layer{layer}"]] for layer in order}
    assert np.all(np.diff(list(start_s.values())) > 0)
    for layer, at in start_s.items():
        row = rows[layer]
        moved_s = (at - start_s[2]) - (int(row["allStartMicros"]) - began) * 1e-6
        assert -1e-9 < moved_s < 2e-4
        ended_s = int(row["allStartMicros"]) + int(row["allEndRelMicros"]) - began
        assert at - start_s[2] + step.duration_s[pulls[f"layer{layer}"]] == pytest.approx(ended_s * 1e-6)


def test_late_downlinks_of_two_servers() -> None:
    """The end of a step on two servers is told by transfers of nothing, after the updates."""
    with pytest.warns(FormatWarning, match="1 of 8 steps were dropped"):
        steps = read_tf_run_metadata([TWO_SERVERS], bytes_per_s=RATE)
    assert steps.servers == 2
    late = [op for op in steps.ops if op.resource == "downlink" and op.size_bytes == 0]
    assert len(late) == 2
    assert all(op.deps and op.deps[0].startswith("ps") for op in late)
    assert steps.metadata["steps_dropped"] == 1


def test_the_rate_can_be_taken_from_the_transfers() -> None:
    """With a warning: it is what was reached, waits included."""
    with pytest.warns(FormatWarning, match="no rate of the link"):
        steps = read_tf_run_metadata([ONE_SERVER])
    assert steps.link.bytes_per_s == pytest.approx(RATE, rel=0.03)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    """The order of pulls, too, is read with it."""
    with pytest.raises(FormatError, match="bytes_per_s"):
        read_tf_run_metadata([ONE_SERVER], bytes_per_s=rate)


@pytest.mark.parametrize("row", ["RecvTensor", "ps"])
def test_incomplete_steps_are_dropped(tmp_path: Path, row: str) -> None:
    """A step that lacks a transfer, or all that a server did, would be too fast."""
    found = runs()
    for device in found[2]["stepStats"]["devStats"]:
        if row == "RecvTensor":
            device["nodeStats"] = device["nodeStats"][1:]
        elif "ps" in device["device"]:
            device["nodeStats"] = [n for n in device["nodeStats"] if n["nodeName"] == "RecvTensor"]
    with pytest.warns(FormatWarning, match="1 of 8 steps were dropped"):
        steps = read(tmp_path, found)
    assert len(steps.steps) == 7


def test_an_input_that_stands_twice_counts_once(tmp_path: Path) -> None:
    """TensorFlow lists an input once for each place where an op uses it."""
    found = runs()
    for run in found:
        for graph in run["partitionGraphs"]:
            for node in graph["node"]:
                node["input"] = node.get("input", []) * 2
    assert read(tmp_path, found) == read(tmp_path, runs())


def test_steps_of_another_graph_are_dropped(tmp_path: Path) -> None:
    """A step that evaluated instead of training has no place among the others."""
    found = runs()
    found[0]["partitionGraphs"][0]["node"].append({"name": "extra", "op": "NoOp", "device": "/job:ps/task:0"})
    with pytest.warns(FormatWarning, match="1 of 8"):
        read(tmp_path, found)


def broken(change: str) -> Any:
    """Return RunMetadata with something wrong."""
    found = runs()[:1]
    node = copy.deepcopy(found[0]["partitionGraphs"][0]["node"][0])
    match change:
        case "no graphs":
            del found[0]["partitionGraphs"]
        case "no statistics":
            del found[0]["stepStats"]
        case "no rows":
            found[0]["stepStats"] = {}
        case "another worker":
            found[0]["partitionGraphs"][0]["node"].append({**node, "device": "/job:worker/task:5"})
        case "no device":
            found[0]["partitionGraphs"][0]["node"].append({**node, "device": ""})
        case "a loop":
            loop = [
                {"name": name, "op": "Add", "input": [other], "device": "/job:worker/task:0"}
                for name, other in ("xy", "yx")
            ]
            found[0]["partitionGraphs"][0]["node"] += loop
        case "a name":
            found[0]["partitionGraphs"][0]["node"].append({**node, "name": {}})
        case "a long name":
            node["device"] = "/job:worker/task:0"
            found[0]["partitionGraphs"][0]["node"].append({**node, "name": "x" * 1001})
        case "a sender":
            for graph in found[0]["partitionGraphs"]:
                graph["node"] = [each for each in graph["node"] if each["op"] not in ("_Send", "_HostSend")]
        case "a time":
            found[0]["stepStats"]["devStats"][0]["nodeStats"][0]["allStartMicros"] = "soon"
        case "nothing":
            return []
        case "a number":
            return [7]
    return found


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("no graphs", "no partitionGraphs: trace with output_partition_graphs=True"),
        ("no statistics", "no stepStats"),
        ("no rows", "none of 1 steps is complete"),
        ("another worker", "ops of several workers"),
        ("no device", "is on no job and task"),
        ("a loop", "have a cycle"),
        ("a name", r"the name of a node is \{\}: expected a text"),
        ("a long name", "makes no valid steps document: name"),
        ("a sender", "nothing sends what .* receives"),
        ("a time", "allStartMicros is 'soon'"),
        ("nothing", "there is no RunMetadata"),
        ("a number", "no stepStats"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, change: str, complaint: str) -> None:
    """One line with the file, the step and the reason."""
    with pytest.raises(FormatError, match=complaint) as refused:
        read(tmp_path, broken(change))
    assert "\n" not in str(refused.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    """Such as the binary protocol buffer."""
    path = tmp_path / "trace.pb"
    path.write_bytes(b"\x08\x01\x12")
    with pytest.raises(FormatError, match="not JSON"):
        read_tf_run_metadata([path])
