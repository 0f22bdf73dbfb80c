"""``pace diloco``: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pace.cli import app
from tests.pace_sync.planning.outer.outer_problems import outer_fields


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """Return an outer-sync document on disk."""
    file = tmp_path / "outer.json"
    file.write_text(json.dumps(outer_fields()))
    return file


def run(*arguments: object) -> Result:
    """Run ``pace diloco``."""
    return CliRunner().invoke(app, ["diloco", *map(str, arguments)])


def test_plan_check_and_simulate(document: Path, tmp_path: Path) -> None:
    """A plan is described, written, valid and played; changed by hand it is not, and the exit code is 1."""
    plan = tmp_path / "plan.json"
    made = run("plan", document, "-o", plan)
    assert made.exit_code == 0, made.output
    assert "no plan exceeds 100.00 %" in made.stdout
    assert "torchft, best settings" in made.stdout
    assert json.loads(run("plan", document, "--json").stdout) == json.loads(plan.read_text())
    played = run("simulate", document, plan, "--periods", 3)
    assert played.stdout.startswith("utilization 100.00 % over 3 periods"), played.output
    assert len(json.loads(run("simulate", document, plan, "--json").stdout)["period_s"]) == 20
    checked = run("check", document, plan)
    assert (checked.exit_code, checked.stdout) == (0, f"{plan}: valid\n")
    wrong = json.loads(plan.read_text())
    wrong["predicted"]["utilization"] *= 0.9
    plan.write_text(json.dumps(wrong))
    checked = run("check", document, plan, "--json")
    assert checked.exit_code == 1
    assert json.loads(checked.stdout)["violations"][0].startswith("predicted.utilization")


def test_plans_for_torchft(document: Path) -> None:
    """They have one delay."""
    made = json.loads(run("plan", document, "--for-torchft", "--json").stdout)
    assert len({fragment["delay_steps"] for fragment in made["fragments"]}) == 1


def test_bandwidth(document: Path) -> None:
    """One row for each utilization, as a table and as JSON."""
    shown = run("bandwidth", document, "--utilization", "0.8,0.95")
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) == 4
    found = json.loads(run("bandwidth", document, "--json").stdout)
    assert found[0]["plan"] < found[0]["torchft"]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("bandwidth", ("--utilization", "1.5"), "--utilization 1.5: give a number between 0 and 1"),
        ("bandwidth", ("--utilization", "x"), "expected numbers"),
        ("simulate", ("--periods", "0"), "--periods 0: give a number from 1 to 1,000,000"),
        ("simulate", ("--periods", "1000000000"), "give a number from 1 to 1,000,000"),
        ("simulate", ("--jitter", "nan"), "--jitter nan: give a number from 0 to below 1"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    document: Path, command: str, options: tuple[str, ...], said: str
) -> None:
    """What is wrong, and the exit code of wrong usage."""
    plan = document.with_name("plan.json")
    assert run("plan", document, "-o", plan).exit_code == 0
    result = run(command, document, *([plan] if command == "simulate" else []), *options)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
    assert said in result.stderr
