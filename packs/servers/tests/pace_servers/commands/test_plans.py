"""The commands on parameter servers: plans that check accepts, tables, documents, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pace.cli import app
from pace.documents.cluster import parse_cluster
from pace.documents.schedule import parse_schedule
from pace.models import build

PS = ("--exchange", "servers")


def run(*arguments: object) -> Result:
    """Run a command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VGG16 on four workers."""
    path = tmp_path_factory.mktemp("profiles") / "vgg16.json"
    path.write_bytes(build("vgg16", device_tflops=8.0, batch=32, workers=4).to_json())
    return path


def test_a_plan_is_written_checked_and_read(profile: Path, tmp_path: Path) -> None:
    """Valid for its profile; a change is found, exit 1."""
    plan = tmp_path / "plan.json"
    shown = run("optimize", profile, *PS, "--servers", 2, "-o", plan)
    assert shown.exit_code == 0, shown.output
    assert "2 servers" in shown.stdout
    schedule = parse_schedule(plan.read_bytes())
    smallest = min(segment.size_bytes for segment in schedule.transfers)
    assert f"segments    {schedule.num_segments}, the smallest of {smallest:,} bytes" in shown.stdout
    assert {segment.link for segment in schedule.transfers} == {0, 1, 2, 3}
    assert run("check", profile, plan).exit_code == 0
    broken = json.loads(plan.read_bytes())
    broken["transfers"][0]["end_s"] /= 2
    plan.write_text(json.dumps(broken))
    refused = run("check", profile, plan)
    assert refused.exit_code == 1
    assert "push transfers[0]" in refused.output


def test_the_chart_of_a_plan_is_written(profile: Path, tmp_path: Path) -> None:
    """A row for each server; a name of no picture is refused before anything is solved."""
    chart, timeline = tmp_path / "plan.svg", tmp_path / "timeline.json"
    drawn = run("optimize", profile, *PS, "--servers", 2, "--plot", chart, "--timeline", timeline)
    assert drawn.exit_code == 0, drawn.output
    assert chart.read_text().lstrip().startswith("<?xml")
    assert json.loads(timeline.read_text())["traceEvents"]
    refused = run("optimize", profile, *PS, "--servers", 2, "--plot", tmp_path / "plan.xyz")
    assert refused.exit_code == 2
    assert "plan.xyz" in refused.output
    assert "Traceback" not in refused.output


def test_json_is_one_document(profile: Path) -> None:
    """Every command's --json prints one document and nothing else."""
    plan = json.loads(run("optimize", profile, *PS, "--servers", 4, "--colocated", "--json").stdout)
    assert plan["exchange"] == "servers"
    simulated = json.loads(run("simulate", profile, *PS, "--servers", 4, "--policy", "pace", "--json").stdout)
    assert simulated["policies"][0]["iteration_s"] >= simulated["lower_bound_s"]
    cells = json.loads(run("what-if", profile, "--servers", "1,4", "--json").stdout)["cells"]
    by_servers: dict[Any, float] = {
        cell["servers"]: cell["iteration_s"] for cell in cells if cell["policy"] == "pace"
    }
    assert by_servers[1] > by_servers[4]


def test_a_cluster_document_says_it_all(profile: Path, tmp_path: Path) -> None:
    """Servers, rates and ratios from a file; a broken one is refused with the file's name, exit 1."""
    file = tmp_path / "cluster.json"
    document = {
        "schema_version": 1,
        "name": "slow servers",
        "exchange": {"kind": "push-pull", "servers": 2, "worker_bytes_per_s": 1e9},
        "ratios": [{"gradient": "fc6.weight", "push": 0.01}],
    }
    name = json.loads(profile.read_bytes())["gradients"][0]["name"]
    document["ratios"][0]["gradient"] = name  # type: ignore[index]  # a list, as above
    file.write_text(json.dumps(document))
    made = json.loads(run("optimize", profile, *PS, "--cluster", file, "--json").stdout)
    assert made["cluster"] == json.loads(parse_cluster(file.read_bytes()).to_json())
    file.write_text(json.dumps(document | {"servers": 2}))
    refused = run("optimize", profile, *PS, "--cluster", file)
    assert refused.exit_code == 1
    assert "cluster.json" in refused.output


def test_staleness_and_stragglers(profile: Path) -> None:
    """Async and stale runs need no bound; TicTac, whose steps end at a barrier, is left out."""
    shown = run(
        "simulate", profile, *PS, "--servers", 4, "--staleness", "async", "--jitter", 0.2, "--iterations", 3
    )
    assert shown.exit_code == 0
    assert "pace" in shown.stdout
    assert "tao" not in shown.stdout
    table = run("what-if", profile, "--servers", 2, "--staleness", "sync,1,async", "--jitter", 0.1, "--csv")
    assert table.exit_code == 0
    assert len(table.stdout.splitlines()) == 1 + 3 * 3


def test_tuning_shows_every_search(profile: Path) -> None:
    """Bayesian optimization beside grid, random and momentum."""
    command = ("simulate", profile, *PS, "--servers", 4, "--policy", "bytescheduler", "--trials", 9)
    found = json.loads(run(*command, "--tune", "bayes", "--json").stdout)["policies"][0]
    assert found["best"]["iteration_s"] <= found["default"]["iteration_s"]
    assert set(found["searches"]) == {"bayes", "grid", "random", "momentum"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "--servers", "2", "--exchange", "sharded"),
        ("optimize", "--partition-bytes", "4096"),
        ("optimize", *PS),
        ("optimize", *PS, "--servers", "2", "--oracle", "lp"),
        ("optimize", *PS, "--servers", "0"),
        ("optimize", *PS, "--servers", "9", "--colocated"),
        ("optimize", *PS, "--servers", "2", "--partition-bytes", "0"),
        ("optimize", *PS, "--servers", "2", "--partition-bytes", "5"),
        ("simulate", "--policy", "byteps"),
        ("simulate", "--staleness", "async"),
        ("simulate", *PS, "--servers", "2", "--policy", "ddp"),
        ("simulate", *PS, "--servers", "2", "--staleness", "-1"),
        ("simulate", *PS, "--servers", "2", "--tune", "guessing"),
        ("what-if", "--servers", "9", "--colocated"),
        ("what-if", "--servers", "2", "--staleness", "maybe"),
        ("what-if", "--servers", "two"),
        ("what-if", "--servers", "2", "--latency-s", "1e-5"),
        ("what-if", "--servers", "2", "--plot", "chart.png"),
        ("what-if", "--servers", "2", "--service", "http://127.0.0.1:1"),
    ],
)
def test_wrong_usage_is_said(profile: Path, arguments: tuple[str, ...]) -> None:
    """Exit 2 and one line that says what belongs together."""
    command, *rest = arguments
    refused = run(command, profile, *rest)
    assert refused.exit_code == 2, refused.output
    assert refused.output.startswith("pace: ")


@pytest.mark.parametrize("command", [("optimize",), ("simulate", "--policy", "fifo")])
def test_fields_without_influence_are_named(profile: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Once each, and the slowdown is not stated as if it counted; default values need no warning."""
    document = json.loads(profile.read_bytes())
    document |= {"compute_slowdown": 1.5, "load": {"sigma": {document["ops"][0]["name"]: 0.01}}}
    slowed = tmp_path / "slowed.json"
    slowed.write_text(json.dumps(document))
    name, *options = command
    told = run(name, slowed, *PS, "--servers", 2, *options).stderr
    for field in ("compute_slowdown", "load.sigma"):
        assert told.count(f"warning: {document['name']}: {field} is not used with --exchange") == 1
    assert "load.delta" not in told
    assert "times as long" not in told
    assert "not used" not in run(name, profile, *PS, "--servers", 2, *options).stderr
