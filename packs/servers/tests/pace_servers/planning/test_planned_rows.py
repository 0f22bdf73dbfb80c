"""Plans and simulations of embedding tables count the rows that steps touch."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli import app
from pace.documents.cluster import Cluster
from pace.documents.options import SimulationOptions
from pace.documents.profile import Profile
from pace.kinds import check
from pace.kinds.comparison import simulate
from pace_servers.planning.optimize import optimize_servers
from pace_servers.planning.problem import ServersProblem
from tests.pace.documents.test_touched_rows import ROW_BYTES, ROWS, profile


def test_a_plan_counts_the_rows_touched() -> None:
    """Pushes of one worker's rows, pulls of all workers' rows; the checker accepts it, all-reduces differ."""
    found = profile()
    schedule = optimize_servers(found)
    assert check(found, schedule) == []
    assert schedule.cluster is not None
    (ratio,) = schedule.cluster.ratios
    assert ratio.gradient == "table"
    assert ratio.push * ROWS * ROW_BYTES == pytest.approx(1000 * 104, rel=1e-3)
    assert ratio.pull * ROWS * ROW_BYTES == pytest.approx(1900 * 104, rel=1e-3)
    whole = optimize_servers(profile(touched=None))
    assert whole.predicted.iteration_s > 2 * 1.0  # 100 MB each way, one after the other
    assert schedule.predicted.iteration_s < 0.1
    assert schedule.predicted.lower_bound_s <= schedule.predicted.iteration_s


def test_a_simulation_is_of_the_rows_of_its_workers() -> None:
    """The simulated iteration of the planned order is the planned one, for any number of workers."""
    for workers in (1, 2, 4):
        found = profile(workers)
        simulated = simulate(found, ["pace"], SimulationOptions(exchange="servers"))["pace"]
        planned = optimize_servers(found).predicted.iteration_s
        assert simulated.iteration_s == pytest.approx(planned, rel=1e-6)
    problem = ServersProblem.of(profile(3), Cluster(name="c", exchange=profile().allreduce))
    assert problem.pull_bytes[0] == pytest.approx(2700 * 104, rel=1e-3)


def test_a_plan_says_what_is_sent_of_tables(tmp_path: Path) -> None:
    """One line: shares of the table, whether they are estimates, and tables that no gradient stands for."""

    def said(found: Profile) -> list[str]:
        path = tmp_path / "profile.json"
        path.write_bytes(found.to_json())
        printed = CliRunner().invoke(app, ["optimize", str(path), "--exchange", "servers"]).stdout
        return [line for line in printed.splitlines() if line.startswith("tables")]

    assert said(profile(touched=None)) == []
    assert said(profile()) == ["tables      table: 0.10% pushed, 0.20% pulled"]
    (line,) = said(profile(5).replace(metadata={"tables_left_out": {"items": {}}}))
    assert "upper estimates" in line
    assert line.endswith("not in this plan: items")
