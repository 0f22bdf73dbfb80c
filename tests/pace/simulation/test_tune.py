"""Tuning knobs: every search stays in range, keeps its budget, repeats itself, and finds something."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace import InvalidOptions, SimulationOptions
from pace.cli import app
from pace.kinds.tuning import RANGES, TriedKnobs, Tuned, tunable, tune
from pace.models import build
from pace.simulation import make_policy, run_policy
from pace.solver.knob_search import SEARCHES, Search

PROFILE = build("vgg16", device_tflops=8.0, batch=64, workers=8)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("policy", ["bytescheduler", "ddp", "horovod", "dear"])
def test_a_search_keeps_to_its_rules(search: Search, policy: str) -> None:
    """Budget, ranges, no worse than the defaults, and the best is the least of what was tried."""
    if search == "bayes":
        pytest.importorskip("bayes_opt")
    found = tune(PROFILE, policy, SimulationOptions(seed=3), search=search, num_trials=6)
    assert 1 <= found.num_trials <= 6
    for trial in found.trials:
        assert tuple(trial.knobs) == tunable(policy)
        for knob, value in trial.knobs.items():
            assert RANGES[knob][0] * 0.999 <= value <= RANGES[knob][1] * 1.001
    tried = [trial.iteration_s for trial in (found.default, *found.trials)]
    assert found.best.iteration_s == min(tried)
    again = run_policy(PROFILE, make_policy(policy, **found.best.knobs)).iteration_s
    assert again == found.best.iteration_s
    assert found == tune(PROFILE, policy, SimulationOptions(seed=3), search=search, num_trials=6)


def test_bayesian_search_comes_close_to_a_fine_grid() -> None:
    """15 settings chosen one by one are within 2 % of 400 on a grid."""
    pytest.importorskip("bayes_opt")
    fine = tune(PROFILE, "bytescheduler", search="grid", num_trials=400)
    assert fine.num_trials == 400
    found = tune(PROFILE, "bytescheduler", num_trials=15)
    assert found.best.iteration_s <= fine.best.iteration_s * 1.02
    assert found.best.iteration_s < found.default.iteration_s


def test_fixed_knobs_keep_their_value() -> None:
    """Only the others are searched."""
    found = tune(
        PROFILE,
        "bytescheduler",
        SimulationOptions(knobs={"credit_bytes": 1 << 20}),
        search="random",
        num_trials=3,
    )
    assert all(tuple(trial.knobs) == ("partition_bytes",) for trial in found.trials)


def test_the_cost_of_a_search_is_counted_in_settings() -> None:
    """How many until within 1 %."""
    trials = tuple(TriedKnobs(knobs={}, iteration_s=seconds) for seconds in (3.0, 2.0, 1.005, 1.0))
    tuned = Tuned(policy="ddp", search="random", best=trials[-1], default=trials[0], trials=trials)
    assert tuned.trials_to(1.0) == 3
    assert tuned.trials_to(0.5) is None


def test_the_command_line_compares_the_searches(tmp_path: Path) -> None:
    """One document: defaults, the best knobs, and what each search cost; a wrong search is one line."""
    pytest.importorskip("bayes_opt")
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.model_dump_json())
    command = ["simulate", str(path), "--policy", "ddp", "--trials", "7"]
    result = CliRunner().invoke(app, [*command, "--tune", "bayes", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["policies"]
    assert set(row["searches"]) == set(SEARCHES)
    assert row["best"]["iteration_s"] <= row["default"]["iteration_s"]
    shown = CliRunner().invoke(app, [*command, "--tune", "grid"])
    assert "bucket_bytes=" in shown.stdout
    wrong = CliRunner().invoke(app, [*command, "--tune", "luck"])
    assert wrong.exit_code == 2
    assert wrong.stderr.strip() == 'pace: --tune "luck": expected one of bayes, grid, random, momentum'
    unknown = CliRunner().invoke(app, [*command, "--tune", "grid", "--knob", "speed=3"])
    assert unknown.stderr.startswith('pace: no knob "speed": "')


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("fifo", {}, 'policy "fifo" has no knob to tune'),
        ("ddp", {"search": "luck"}, 'no search "luck": choose one of bayes, grid'),
        ("ddp", {"num_trials": 0}, "0 trials"),
        ("lifo", {}, 'no policy "lifo"'),
    ],
)
def test_what_cannot_be_tuned_is_refused(policy: str, changes: dict[str, object], message: str) -> None:
    """In one line."""
    with pytest.raises(InvalidOptions, match=message):
        tune(PROFILE, policy, **changes)  # type: ignore[arg-type]  # wrong on purpose
