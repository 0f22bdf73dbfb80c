"""Every study can be found: in the list of the command and in the table of ``benchmarks/README.md``."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main, studies, summary
from benchmarks.studies.papers.tictac_tensorflow import share_in_order, turns_that_wait_for_arrivals

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_names_every_study_and_no_other() -> None:
    """A study that comes or goes changes the table of numbers, commands and pages."""
    readmes = [ROOT / "benchmarks" / "README.md", *ROOT.glob("packs/*/README.md")]
    named = set()
    for readme in readmes:
        table = readme.read_text(encoding="utf-8")
        named |= set(re.findall(r"`python -m benchmarks ([\w.]+)", table))
        pages = re.findall(r"\]\(([^)#]+)[^)]*\)", table)
        assert [page for page in pages if not (readme.parent / page).exists()] == []
    assert named == set(studies())


def test_every_study_says_what_it_measures() -> None:
    """The first line of its docstring stands in the list."""
    assert all(summary(path) for _, path in studies().values())


def test_unknown_studies_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names of those that there are."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "nothing"])
    assert main() == 2
    assert 'no study "nothing"' in capsys.readouterr().err


# Runs a study as if some packages were not installed.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
_, named, *sys.argv[1:] = sys.argv
missing = named.split(",")
sys.meta_path.insert(0, Missing())
from benchmarks.__main__ import main
sys.exit(main())
"""


def told_first(study: list[str], missing: str, said: str) -> None:
    """Run a study without packages (names with commas) and without programs: it ends with one line."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, *study],
        env={**os.environ, "PATH": "/nowhere"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert done.stderr.startswith(f"{study[0]}: {said}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "missing", "said"),
    [
        (["testbed"], "horovod", "the Python package horovod is not installed: run scripts/install"),
        (["testbed", "--chart", "x.png"], "horovod,matplotlib", "the Python package"),
        (["server_cpu"], "torch", "the Python package torch"),
        (["capture"], "transformers", "the Python package transformers"),
        (["web_page"], "playwright", "the Python package playwright"),
        (["service", "reads"], "", "needs `wrk`: apt-get install wrk"),
        (["embedding", "--tensorflow", "/nowhere"], "", "/nowhere: No such file"),
        (["allreduce_cost"], "", "the testbed "),
        (["compiled_sharding"], "", "the testbed "),
        (["throughput", "tcp"], "", "the testbed "),
        (["urgent_chunk"], "", "the testbed "),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_what_a_study_lacks_is_said_first(study: list[str], missing: str, said: str) -> None:
    """In one line, with exit status 3."""
    told_first(study, missing, said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["testbed", "solver", "throughput", "papers.who_wins"])
def test_a_study_shows_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Under the name by which it was called."""
    monkeypatch.setattr("sys.argv", ["benchmarks", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out


Node = tuple[str, str, list[str], str]

# Recorded of TensorFlow 2.21, without gradients: what one server and one worker executed for two variables.
READ: list[Node] = [
    ("Identity/ReadVariableOp", "ReadVariableOp", ["layer0"], ""),
    ("Identity/ReadVariableOp_S6", "_Send", ["Identity/ReadVariableOp"], "copy 0"),
    ("Identity/ReadVariableOp_S7", "_Recv", [], "copy 0"),
    ("Identity_1/ReadVariableOp_S12", "_Send", ["Identity_1/ReadVariableOp"], "copy 1"),
    ("Identity_1/ReadVariableOp_S13", "_Recv", [], "copy 1"),
    ("layer0", "VarHandleOp", [], ""),
    ("layer1", "VarHandleOp", [], ""),
]
ANSWER: list[Node] = [
    ("received/ctrl_S12", "Const", ["^received"], ""),
    ("received_S13", "_Send", ["received/ctrl_S12"], "answer"),
    ("received_S14", "_Recv", [], "answer"),
    ("Identity_1/ReadVariableOp", "ReadVariableOp", ["layer1", "^received_S14"], ""),
]
RECORDED: dict[str, list[Node]] = {
    # The optimizer moved the edge from the worker's no_op to the server.
    "no_op": [
        *READ,
        ("Identity_1/ReadVariableOp", "ReadVariableOp", ["layer1", "^Identity/ReadVariableOp"], ""),
    ],
    # The answer waits for an empty tensor, which overtakes the copy.
    "control edge": [
        *READ,
        *ANSWER,
        ("received", "PyFunc", ["^Identity_S10"], ""),
        ("Identity/ctrl_S8", "Const", ["^Identity/ReadVariableOp"], ""),
        ("Identity_S9", "_Send", ["Identity/ctrl_S8"], "beside copy 0"),
        ("Identity_S10", "_Recv", [], "beside copy 0"),
    ],
    "the copy itself": [*READ, *ANSWER, ("received", "PyFunc", ["Identity/ReadVariableOp_S7"], "")],
}


@pytest.mark.parametrize(
    ("answer", "held"), [("no_op", []), ("control edge", []), ("the copy itself", [1])], ids=str
)
def test_an_order_in_tensorflow_is_read_from_the_executed_graph(answer: str, held: list[int]) -> None:
    """The second copy waits for the first one's arrival only if the answer takes the copy itself."""
    nodes = [
        {"name": name, "op": op, "input": given, "attr": {"tensor_name": {"s": tensor}}}
        for name, op, given, tensor in RECORDED[answer]
    ]
    assert turns_that_wait_for_arrivals({"partitionGraphs": [{"node": nodes}]}) == held


def test_arrivals_in_turn_are_counted() -> None:
    """Of three parameters, the second arrives before the first: one of two neighbors is in order."""
    rows = [
        {
            "nodeName": "RecvTensor",
            "allStartMicros": str(start),
            "allEndRelMicros": "10",
            "timelineLabel": f"[1.0MB] [5.0Gb/s] edge_{5 * turn}_{name} from /job:ps to /job:worker",
        }
        for turn, (name, start) in enumerate(
            [("Identity/ReadVariableOp", 20), ("Identity_1", 0), ("Identity_2/ReadVariableOp", 40)]
        )
    ]
    rows.append({**rows[0], "timelineLabel": "[4B] edge_24_gradient0 from /job:worker to /job:ps"})
    assert share_in_order({"stepStats": {"devStats": [{"nodeStats": rows}]}}) == 0.5
