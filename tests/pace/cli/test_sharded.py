"""Sharded schedules from the command line."""

import json
from pathlib import Path

from typer.testing import CliRunner

from pace.cli.main import app
from tests.strategies import affine, layered

PROFILE = layered([2, 4], allreduce=affine(0.125, 0.125), workers=2)


def test_optimize_check_and_simulate(tmp_path: Path) -> None:
    """A norm is enough for a sharded schedule, --exchange sharded too; what is corrupted is refused."""
    run = CliRunner()
    profile, schedule = tmp_path / "profile.json", tmp_path / "schedule.json"
    for update, options in (("global-norm", []), ("per-gradient", ["--exchange", "sharded"])):
        profile.write_bytes(PROFILE.replace(update=update).to_json())
        made = run.invoke(app, ["optimize", str(profile), *options, "-o", str(schedule)])
        assert made.exit_code == 0, made.output
        assert "reduce-scatters" in made.output
        assert json.loads(schedule.read_text())["exchange"] == "sharded"
        assert run.invoke(app, ["check", str(profile), str(schedule)]).exit_code == 0
    document = json.loads(schedule.read_text())
    document["predicted"]["iteration_s"] /= 2
    schedule.write_text(json.dumps(document))
    assert run.invoke(app, ["check", str(profile), str(schedule)]).exit_code == 1


def test_what_a_sharded_schedule_does_not_have_is_wrong_usage(tmp_path: Path) -> None:
    """Slots and the paper's fusion are for all-reduces."""
    profile = tmp_path / "profile.json"
    profile.write_bytes(PROFILE.to_json())
    for option in (["--slot-s", "0.1"], ["--fusion", "paper"], ["--for", "ddp"], ["--partition-bytes", "4"]):
        made = CliRunner().invoke(app, ["optimize", str(profile), "--exchange", "sharded", *option])
        assert made.exit_code == 2, made.output


def test_a_sharded_schedule_is_drawn(tmp_path: Path) -> None:
    """Its timeline and its chart, as those of any other exchange."""
    profile, trace, chart = tmp_path / "profile.json", tmp_path / "t.json", tmp_path / "chart.svg"
    profile.write_bytes(PROFILE.replace(update="global-norm").to_json())
    drawn = ["--timeline", str(trace), "--plot", str(chart)]
    made = CliRunner().invoke(app, ["optimize", str(profile), *drawn])
    assert made.exit_code == 0, made.output
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert {"reduce-scatter 0", "all-gather 2", "global norm"} <= names
    assert chart.read_text().lstrip().startswith("<?xml")


def test_simulate_honors_the_update_rule(tmp_path: Path) -> None:
    """The bound behind a norm is that of sharded schedules where that is lower."""
    profile = tmp_path / "profile.json"
    profile.write_bytes(PROFILE.replace(update="global-norm").to_json())
    made = CliRunner().invoke(
        app, ["simulate", str(profile), "--policy", "ddp", "--policy", "sharded", "--json"]
    )
    document = json.loads(made.stdout)
    windows = {row["policy"]: row["iteration_s"] for row in document["policies"]}
    assert windows["ddp"] >= document["lower_bound_s"]
    assert windows["sharded"] >= document["lower_bound_s"]
