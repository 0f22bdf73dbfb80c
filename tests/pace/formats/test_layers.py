"""Per-layer tables: CSV and PipeDream's graph.txt."""

from pathlib import Path

import pytest

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.load import NO_LOAD
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.layers import read_layer_csv
from pace.formats.pipedream import read_pipedream
from pace.formats.reading import FormatWarning
from pace.models import build, with_ratio
from pace.planning.allreduce.optimize import optimize_allreduce

COST = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)

CSV = """\
name,forward_ms,backward_ms,parameter_bytes,inputs
stem,1,2,400,
left,3,5,800,stem
right,4,6,0,stem
join,0.5,0.25,40,left;right
"""
GRAPH = """\
node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=3.0, backward_compute_time=5.0, \
activation_size=822083584.000, parameter_size=7168.000
node10 -- Add -- forward_compute_time=1.0, backward_compute_time=0.5, parameter_size=0.000
node1 -- Input -- forward_compute_time=17.972, backward_compute_time=0.000, activation_size=1.0, \
parameter_size=0.000
node3 -- Linear(4, 4) -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=8.0, \
parameter_size=64.000
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node10
\tnode3 -- node10
"""


def _csv(folder: Path, text: str) -> Profile:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_layer_csv(path, workers=4, allreduce=COST)


def _graph(folder: Path, text: str) -> Profile:
    path = folder / "graph.txt"
    path.write_text(text, encoding="utf-8")
    return read_pipedream(path, workers=4, allreduce=COST)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_cells_may_be_between_semicolons_or_tabs(tmp_path: Path, mark: str) -> None:
    """As spreadsheets write them; a cell with semicolons is in quotes."""
    text = CSV.replace("left;right", '"left;right"').replace(",", mark)
    assert _csv(tmp_path, text).sha256 == _csv(tmp_path, CSV).sha256


def test_a_name_may_begin_with_a_hash(tmp_path: Path) -> None:
    """It is no comment, and no layer is lost."""
    assert len(_csv(tmp_path, CSV.replace("left", "#left")).gradients) == 3


def test_a_branching_table_worked_out_by_hand(tmp_path: Path) -> None:
    """Backward reverses the edges, milliseconds become seconds, ready times and tails add up."""
    profile = _csv(tmp_path, CSV)
    deps = {op.name: op.deps for op in profile.ops}
    assert [op.name for op in profile.ops[:4]] == ["bwd/join", "bwd/right", "bwd/left", "bwd/stem"]
    assert deps["bwd/stem"] == ("bwd/left", "bwd/right")
    assert deps["fwd/join"] == ("fwd/left", "fwd/right")
    assert [(g.name, g.size_bytes) for g in profile.gradients] == [("join", 40), ("left", 800), ("stem", 400)]
    assert profile.timing.ready_s == pytest.approx([0.25e-3, 11.25e-3, 13.25e-3])
    assert profile.timing.tail_s == pytest.approx([0.5e-3, 7.5e-3, 8.5e-3])
    assert profile.name == "table"


def test_without_inputs_layers_follow_one_another(tmp_path: Path) -> None:
    """Other units, elements instead of bytes, another dtype."""
    profile = _csv(tmp_path, "name,forward_us,backward_s,parameters,dtype\na,1,2,3,float16\nb,1,2,5,\n")
    assert [op.deps for op in profile.ops] == [(), ("bwd/b",), (), ("fwd/a",)]
    assert {(g.name, g.size_bytes, g.dtype) for g in profile.gradients} == {
        ("a", 6, "float16"),
        ("b", 20, "float32"),
    }
    assert profile.timing.compute_s == pytest.approx(4 + 2e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the table is empty"),
        (CSV.splitlines()[0], "none of 0 layers has parameters"),
        (
            "name,forward_s,backward_s,parameters\na,1,2,0\n",
            "none of 1 layers has parameters: there is nothing",
        ),
        ("name,forward_s,backward_s,parameters\na,0,0,4\n", "every time is 0"),
        (CSV.replace("\n", ",\n"), "line 1: column 6 of 6 has no name"),
        (CSV + "Total,8.5,13.25,1240,\n", 'line 6: "Total" is the sum of the layers: leave this row out'),
        (CSV.replace("stem", "s" * 2000), r"table\.csv: makes no valid profile: name: String"),
        ("name,forward_s,backward_s,parameters\na,1,2,9e18\n", r"table\.csv: makes .*: size_bytes"),
        (CSV.replace("forward_ms", "fwd"), r"line 1: unknown or repeated columns fwd; known"),
        (CSV.replace("backward_ms", "forward_s"), "line 1: expected one of the columns forward_s"),
        (CSV.replace("parameter_bytes", "dtype"), "line 1: expected the column name and one of"),
        (CSV + "stem,1,2,4,\n", 'line 6: two layers are named "stem"'),
        (CSV + "x,1,2,4,nowhere\n", 'line 6: layer "x" reads "nowhere", which is no layer'),
        (CSV.replace("400,", "400,join"), "cycle: .*stem.*join|cycle: .*join.*stem"),
        (CSV.replace("400,", "401,"), 'line 2: layer "stem": 401 bytes are no whole number'),
        (CSV.replace("400,", "4.5,"), "line 2: parameter_bytes is '4.5': expected a whole number"),
        (CSV.replace("left,3", "left,nan"), "line 3: forward_ms is 'nan'"),
        (CSV.replace("left,3", "left,-3"), "line 3: forward_ms is '-3'"),
        (CSV + "x,1\n", "line 6: expected 5 cells, but the row has 2"),
        (CSV + ",1,2,4,\n", "line 6: a layer has no name"),
        (CSV + '"x,1,2,4,\n', "not a CSV table"),
        ("name,forward_s,backward_s,parameters,dtype\na,1,2,3,float7\n", "line 2: unknown dtype 'float7'"),
    ],
)
def test_csv_faults_are_named(tmp_path: Path, text: str, reason: str) -> None:
    """Each fault with its line."""
    with pytest.raises(FormatError, match=reason):
        _csv(tmp_path, text)


def test_a_graph_worked_out_by_hand(tmp_path: Path) -> None:
    """Nodes in numerical order, the loading of data dropped, residual edges kept."""
    profile = _graph(tmp_path, GRAPH)
    names = [op.name for op in profile.ops]
    assert names[4:] == ["fwd/node1.Input", "fwd/node2.Conv2d", "fwd/node3.Linear", "fwd/node10.Add"]
    assert profile.timing.compute_s == pytest.approx((3 + 5 + 1 + 0.5 + 2 + 4) / 1e3)
    assert [(g.name, g.size_bytes) for g in profile.gradients] == [
        ("node3.Linear", 64),
        ("node2.Conv2d", 7168),
    ]
    deps = {op.name: set(op.deps) for op in profile.ops}
    assert deps["bwd/node2.Conv2d"] == {"bwd/node3.Linear", "bwd/node10.Add"}


def test_a_measured_backward_pass_of_the_data_is_dropped_with_a_warning(tmp_path: Path) -> None:
    """There is no gradient of the data; time there was something else."""
    text = GRAPH.replace("17.972, backward_compute_time=0.000", "17.972, backward_compute_time=3.000")
    with pytest.warns(FormatWarning, match="line 3: the time of the Input layer's backward pass"):
        profile = _graph(tmp_path, text)
    assert profile.timing.compute_s == pytest.approx(15.5 / 1e3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n", "no layers"),
        (GRAPH[: GRAPH.index("\tnode1")], "4 layers without edges between them: is the file cut off"),
        (GRAPH + "hello\n", "line 9: neither a layer nor an edge: 'hello'"),
        (GRAPH + "\tnode1 -- node7\n", 'line 9: the edge names "node7"'),
        (GRAPH + "\tnode10 -- node2\n", "feed one another in a cycle"),
        (GRAPH.replace("node3 -- Linear", "node2 -- Linear"), 'line 4: two layers are named "node2"'),
        (
            GRAPH.replace("parameter_size=64.000", "size=64"),
            'line 4: layer "node3.Linear" has no parameter_size',
        ),
        (GRAPH.replace("parameter_size=64.000", "parameter_size=1e30"), "line 4: parameter_size is '1e30'"),
    ],
)
def test_graph_faults_are_named(tmp_path: Path, text: str, reason: str) -> None:
    """Each fault with its line."""
    with pytest.raises(FormatError, match=reason):
        _graph(tmp_path, text)


def _as_csv(computed: Profile) -> str:
    """Write a computed profile as a table: a line for each layer, in the order of the forward pass."""
    size = {gradient.name: gradient.size_bytes for gradient in computed.gradients}
    durations = {op.name: op.duration_s for op in computed.ops}
    lines = ["name,forward_s,backward_s,parameter_bytes"]
    for op in computed.ops:
        kind, _, layer = op.name.partition("/")
        if kind == "fwd":
            total = sum(size[name] for name in op.waits_for)
            lines.append(f"{layer},{op.duration_s!r},{durations.get(f'bwd/{layer}', 0.0)!r},{total}")
    return "\n".join(lines) + "\n"


def _as_graph(computed: Profile) -> str:
    """Write the same as graph.txt: milliseconds, and an edge from each layer to the next."""
    rows = [line.split(",") for line in _as_csv(computed).splitlines()[1:]]
    nodes = [
        f"node{number} -- Layer() -- forward_compute_time={float(forward) * 1e3!r}, "
        f"backward_compute_time={float(backward) * 1e3!r}, activation_size=1.0, parameter_size={size}"
        for number, (_, forward, backward, size) in enumerate(rows, start=2)
    ]
    edges = [f"\tnode{number} -- node{number + 1}" for number in range(2, len(rows) + 1)]
    return "\n".join([*nodes, *edges]) + "\n"


@pytest.mark.parametrize("ratio", [0.5, 2.0])
@pytest.mark.parametrize("name", ["vgg16", "resnet50-v1.5", "inception-v3"])
def test_schedules_of_layer_tables_are_within_one_percent_of_the_bound(
    tmp_path: Path, name: str, ratio: float
) -> None:
    """From both forms; over a ring of 8 without load, with half or twice as much communication as compute."""
    computed = build(name, device_tflops=15, batch=32, workers=8)
    by_csv, by_graph = _csv(tmp_path, _as_csv(computed)), _graph(tmp_path, _as_graph(computed))
    total = sum(gradient.size_bytes for gradient in computed.gradients)
    for profile in (by_csv, by_graph):
        assert sum(gradient.size_bytes for gradient in profile.gradients) == total
        assert profile.timing.compute_s == pytest.approx(computed.timing.compute_s)
        ring = profile.replace(workers=computed.workers, allreduce=computed.allreduce, load=NO_LOAD)
        assert optimize_allreduce(with_ratio(ring, ratio)).predicted.gap < 0.01
