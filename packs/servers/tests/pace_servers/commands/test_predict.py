"""``pace predict``, ``pace fit-overhead`` and the imports that make steps documents."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pace import load_steps
from pace.cli import app
from pace_servers import ThroughputPrediction
from tests.pace.documents.step_documents import pull_compute_push

QUICK = ["--steps", "30", "--skip", "5", "--seeds", "2", "--workers", "1-3"]
TRACE = Path(__file__).parents[1] / "throughput" / "recorded" / "tensorflow-2.21-one-server.json.gz"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Return the path of a steps document."""
    path = tmp_path / "steps.json"
    path.write_bytes(pull_compute_push().to_json())
    return path


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_json_is_one_document(steps: Path) -> None:
    """It is the document that the library returns."""
    result = run("predict", steps, *QUICK, "--servers", "1,2", "--no-advice", "--json")
    assert result.exit_code == 0, result.output
    prediction = ThroughputPrediction.model_validate_json(result.stdout)
    assert [(point.workers, point.servers) for point in prediction.points] == [
        (workers, servers) for servers in (1, 2) for workers in (1, 2, 3)
    ]


def test_csv_a_chart_and_a_page(steps: Path, tmp_path: Path) -> None:
    """A row for each point; a picture; a page that loads nothing."""
    page, chart = tmp_path / "page.html", tmp_path / "chart.svg"
    result = run("predict", steps, *QUICK, "--csv", "--html", page, "--plot", chart)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["workers"] for row in rows] == ["1", "2", "3"]
    text = page.read_text()
    assert "links twice as fast" in text
    assert re.findall(r'(?:src|href)="(?!data:|#)', text) == []
    assert "<svg" in chart.read_text()


def test_a_profile_is_told_from_recorded_steps() -> None:
    """In one line."""
    refused = run("predict", Path(__file__).parents[5] / "examples" / "profiles" / "vgg16.json")
    assert refused.exit_code == 1
    assert "this is another kind of document: it has no" in refused.output


def test_people_get_a_table(steps: Path) -> None:
    """With the knee, advice, coarser models and notes."""
    result = run("predict", steps, *QUICK)
    assert result.exit_code == 0, result.output
    for word in ("Cynthia", "knee", "one more worker", "Note:", "workers"):
        assert word in result.stdout
    assert "Cynthia" not in run("predict", steps, *QUICK, "--no-baselines").stdout


def test_a_fleet_from_a_file(steps: Path, tmp_path: Path) -> None:
    """Workers that differ are described in JSON."""
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"speed": [1, 2], "barrier": "staleness", "max_ahead": 2}))
    result = run("predict", steps, *QUICK, "--fleet", fleet, "--json", "--no-advice")
    assert json.loads(result.stdout)["options"]["fleet"]["max_ahead"] == 2
    fleet.write_text('{"barrier": "quorum"}')
    refused = run("predict", steps, "--fleet", fleet)
    assert (refused.exit_code, "needs quorum" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--workers", "0"], 2, "--workers: expected a whole number from 1 to 10,000 (got 0)"),
        (["--workers", "4-2"], 2, "expected whole numbers"),
        (["--workers", "1-99999"], 2, "at most 1000"),
        (["--bandwidth-gbps", "fast"], 2, "expected numbers"),
        (["--discipline", "lifo"], 2, "discipline"),
        (["--steps", "10", "--skip", "10"], 2, "nothing is left to measure"),
        (["--json", "--csv"], 2, "both print to stdout"),
    ],
)
def test_wrong_usage(steps: Path, arguments: list[str], code: int, complaint: str) -> None:
    """One message on stderr, and the exit code that scripts rely on."""
    result = run("predict", steps, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert complaint in result.stderr


def test_a_wrong_document(tmp_path: Path) -> None:
    """Exit code 1, as for every document that is wrong."""
    path = tmp_path / "steps.json"
    path.write_text("{}")
    result = run("predict", path)
    assert result.exit_code == 1
    assert "steps.json" in result.stderr


def test_a_trace_is_imported(tmp_path: Path) -> None:
    """What was read and dropped is told."""
    output = tmp_path / "steps.json"
    result = run("import", "tf-run-metadata", TRACE, "-o", output, "--bandwidth-gbps", 0.048)
    assert result.exit_code == 0, result.output
    assert "8 steps, 0 dropped" in result.stderr
    assert len(load_steps(output).steps) == 8
    assert run("import", "tf-run-metadata", TRACE, "-o", output, "--bandwidth-gbps", 0).exit_code == 2


def test_a_profile_is_converted(tmp_path: Path) -> None:
    """An all-reduce profile's compute with pulls and pushes around it."""
    output = tmp_path / "steps.json"
    arguments = ["examples/profiles/vgg16.json", "-o", output, "--bandwidth-gbps", 10, "--servers", 2]
    result = run("import", "profile", *arguments)
    assert result.exit_code == 0, result.output
    assert load_steps(output).servers == 2


def test_overhead_is_fitted(tmp_path: Path) -> None:
    """Test G again, from a file."""
    table = tmp_path / "overhead.csv"
    table.write_text("bytes,ms\n1000000,1.2\n4000000,3.0\n16000000,10.2\n")
    fitted = json.loads(run("fit-overhead", table, "--json").stdout)
    assert fitted == {"seconds_per_byte": pytest.approx(6e-10), "seconds": pytest.approx(6e-4)}
    table.write_text("bytes,ms\n1,1\n")
    assert run("fit-overhead", table).exit_code == 2
