"""``pace fabric``: the commands on the example documents."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pace.cli import app

EXAMPLES = Path(__file__).parents[3] / "examples"
NETWORK, BATCH, SCENARIO = (EXAMPLES / f"{name}.json" for name in ("network", "batch", "scenario"))


def pace(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, ["fabric", *map(str, arguments)])


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Return the example's scenario, cut to three seconds."""
    document = json.loads(SCENARIO.read_text())
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(document | {"duration_s": 3.0}))
    return path


def test_a_plan_is_written_and_valid(tmp_path: Path) -> None:
    """Plan, timeline and check agree; stdout holds one document with --json."""
    plan, timeline = tmp_path / "plan.json", tmp_path / "timeline.json"
    made = pace("plan", NETWORK, BATCH, "-o", plan, "--timeline", timeline, "--json")
    assert made.exit_code == 0
    assert made.stdout_bytes == plan.read_bytes()
    events = json.loads(timeline.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * len(
        json.loads(plan.read_text())["transfers"]
    ) + len(json.loads(plan.read_text())["commits"])
    checked = pace("check", NETWORK, BATCH, plan, "--json")
    assert checked.exit_code == 0
    assert json.loads(checked.stdout) == {"valid": True, "violations": []}


def test_people_see_commits_and_drops() -> None:
    """The table names what is committed together, and why something is dropped."""
    made = pace("plan", NETWORK, BATCH)
    assert "u4 + u2" in made.stdout
    assert "dropped u3: overtaken" in made.stdout
    assert "% of the bound for kept updates" in " ".join(made.stdout.split())


def test_a_wrong_plan_is_refused(tmp_path: Path) -> None:
    """Exit 1 and every violation."""
    plan = tmp_path / "plan.json"
    pace("plan", NETWORK, BATCH, "-o", plan)
    document = json.loads(plan.read_text())
    document["commits"][0]["at_s"] = 0.0
    plan.write_text(json.dumps(document))
    checked = pace("check", NETWORK, BATCH, plan)
    assert checked.exit_code == 1
    assert "before" in checked.stdout


def test_exit_codes(tmp_path: Path) -> None:
    """1 for a wrong document, 2 for wrong usage."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"hosts": [], "server": "s"}')
    assert pace("plan", broken, BATCH).exit_code == 1
    assert pace("plan", NETWORK, BATCH, "--rule", "other").exit_code == 2
    assert pace("plan", NETWORK, BATCH, "--order", "exact").exit_code == 2
    assert pace("simulate", SCENARIO, "--policy", "magic").exit_code == 2
    assert pace("what-if", SCENARIO, "--bound", "x").exit_code == 2


def test_simulate(short: Path) -> None:
    """Every policy asked for, in JSON and as a table."""
    done = pace("simulate", short, "--policy", "mlfabric-a", "--policy", "ring", "--json")
    policies = json.loads(done.stdout)["policies"]
    assert [row["policy"] for row in policies] == ["mlfabric-a", "ring"]
    assert all(row["commits"] > 0 for row in policies)
    assert "mlfabric-s" in pace("simulate", short, "--policy", "mlfabric-s").stdout


def test_what_if(short: Path, tmp_path: Path) -> None:
    """Bounds times aggregators, as CSV, JSON and a page."""
    page = tmp_path / "page.html"
    asked = ("what-if", short, "--bound", "15,30", "--aggregators", "0,4")
    assert len(pace(*asked, "--csv", "--html", page).stdout.splitlines()) == 5
    assert page.read_text().count("<tr") == 5
    assert len(json.loads(pace(*asked, "--json").stdout)["cells"]) == 4
