"""``pace what-if``: what it prints, writes, and refuses."""

import csv
import io
import json
import re
import socket
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from pace.cli import app
from pace.models import build
from tests.sharded_graphs import forward, graph_of

PROFILE = build("vgg16", device_tflops=8.0, batch=64, workers=8)
FEW = ["--policy", "fifo", "--policy", "pace"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Return the path of a profile."""
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.model_dump_json())
    return path


def run(profile: Path, *arguments: str, typed: str | None = None) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["what-if", str(profile), *arguments], input=typed)


def test_json_is_one_document(profile: Path) -> None:
    """With bandwidths as a range and workers as a list."""
    result = run(profile, "--bandwidth-gbps", "1,5,10", "--workers", "2,4,8", "--json", *FEW)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert len(document["cells"]) == 18
    assert document["baseline"] == "fifo"


def test_graphs_have_ranks(tmp_path: Path) -> None:
    """As a column of the table and a field of each cell; profiles have workers instead."""
    graph = tmp_path / "graph.json"
    graph.write_bytes(graph_of(forward(2)).to_json())
    table = run(graph, "--ranks", "2,8", "--policy", "pace")
    assert table.exit_code == 0, table.output
    assert re.search(r"ranks\s+bandwidth factor\s+budget GB\s+pace", table.stdout)
    asked = run(graph, "--ranks", "2,8", "--policy", "pace", "--json")
    assert [cell["ranks"] for cell in json.loads(asked.stdout)["cells"]] == [2, 8]
    refused = run(graph, "--ranks", "3")
    assert refused.exit_code == 2
    assert "do not divide into 3 shards" in refused.output


def test_help_has_the_options_of_the_kind(profile: Path, tmp_path: Path) -> None:
    """Fields of its grid, with defaults and examples; those of the other kind are not shown."""
    graph = tmp_path / "graph.json"
    graph.write_bytes(graph_of(forward(2)).to_json())
    of_profile, of_graph = (
        CliRunner().invoke(app, ["what-if", str(each), "--help"], env={"COLUMNS": "300"}).stdout
        for each in (profile, graph)
    )
    for shown, other, words in (
        (of_profile, of_graph, ("--bandwidth-gbps", "example 8,16,32 or 1-8", "--baseline", "--html")),
        (of_graph, of_profile, ("--bandwidth-factor", "--ranks", "(no limit)", "for example 38,40,42")),
    ):
        for word in words:
            assert word in shown
            assert word not in other


def test_profiles_have_no_ranks(profile: Path) -> None:
    """The message says that graphs have."""
    refused = run(profile, "--ranks", "8")
    assert refused.exit_code == 2
    assert "--ranks" in refused.output


def test_csv_has_a_line_for_each_cell(profile: Path) -> None:
    """Ranges count both ends."""
    result = run(profile, "--bandwidth-gbps", "1:2:0.25", "--csv", *FEW)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [float(row["bandwidth_gbps"]) for row in rows[::2]] == [1.0, 1.25, 1.5, 1.75, 2.0]


def test_people_get_a_table_and_targets(profile: Path) -> None:
    """Axes that vary are columns, and each policy; targets follow in words."""
    result = run(profile, "--bandwidth-gbps", "1,10", "--target-efficiency", "0.8", *FEW)
    assert result.exit_code == 0, result.output
    assert "bandwidth in Gbit/s" in result.stdout
    assert re.search(r"pace reaches 80 % at [0-9.]+ Gbit/s", result.stdout)


def test_a_chart_and_a_page(profile: Path, tmp_path: Path) -> None:
    """The page loads nothing, its SVG is well-formed, and it holds every cell, also as CSV."""
    pytest.importorskip("matplotlib")
    png, page = tmp_path / "out.png", tmp_path / "out.html"
    arguments = ["--bandwidth-gbps", "1,5,10", "--workers", "2,8", "--compression", "1,4"]
    result = run(profile, *arguments, "--plot", str(png), "--html", str(page), "--csv", *FEW)
    assert result.exit_code == 0, result.output
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "<script" not in text
    drawings = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == 2  # one for each compression
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    HTMLParser().feed(text)
    assert text.count("<td>pace</td>") >= 12
    again = tmp_path / "again.html"
    run(profile, *arguments, "--html", str(again), *FEW)
    assert again.read_text() == text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--algorithm", "ring,tree,halving-doubling"],
        ["--workers", "2,4", "--algorithm", "ring,tree"],
        ["--bandwidth-gbps", "1,10", "--workers", "2,3,4,5,6,7,8,9"],
    ],
)
def test_any_axes_can_be_drawn(profile: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Nothing varied, words only, no bandwidth, more panels than fit."""
    pytest.importorskip("matplotlib")
    result = run(profile, *arguments, "--plot", str(tmp_path / "out.svg"), *FEW)
    assert result.exit_code == 0, result.output
    assert "<svg" in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bandwidth-gbps", "ten"], 'pace: --bandwidth-gbps "ten": expected numbers, for example 1,5,10'),
        (["--bandwidth-gbps", "1,,2"], "expected numbers, for example 1,5,10 or 1:25:1 (from:to:step)"),
        (["--bandwidth-gbps", "5:1:1"], "expected numbers"),
        (["--bandwidth-gbps", "1:1e9:1e-9"], "expected at most 100,000 values"),
        (
            ["--bandwidth-gbps", "-3"],
            "--bandwidth-gbps: expected a number from 1e-9 to 1e9 (got -3.0)",
        ),
        (["--workers", "2.5"], '--workers "2.5": expected whole numbers'),
        (["--workers", "inf"], '--workers "inf": expected whole numbers'),
        (
            ["--algorithm", "star"],
            "or 'two-level' (got 'star')",
        ),
        (["--algorithm", "two-level"], "needs --workers-per-node and --intra-gbps"),
        (
            ["--workers-per-node", "4"],
            "--workers-per-node needs --intra-gbps: give both, or leave --workers-per-node out",
        ),
        (["--workers", "2,2"], "--workers: 2 is given twice"),
        (["--policy", "fifo", "--policy", "fifo"], "--policy: fifo is given twice"),
        (["--policy", "best"], 'no policy "best": choose one of fifo'),
        (["--json", "--csv"], "both print to stdout"),
        (
            ["--target-efficiency", "2"],
            "--target-efficiency: expected a number above 0 and at most 1 (got 2.0)",
        ),
        (["--processes", "0"], "--processes is 0: expected 1 to 1024"),
        (["--baseline", "lifo"], '--baseline "lifo" is not simulated'),
    ],
)
def test_wrong_usage_is_one_line(profile: Path, arguments: list[str], message: str) -> None:
    """On stderr, with exit code 2 and nothing on stdout."""
    result = run(profile, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_grid_of_hours_is_not_started_unasked(profile: Path) -> None:
    """Where nobody can be asked it is refused with an estimate."""
    axis = "1:1000:0.1"
    result = run(profile, "--bandwidth-gbps", axis, "--compute-speedup", axis, "--batch", axis, *FEW)
    assert result.exit_code == 2
    assert re.search(r"[0-9,]+ simulations would take about [0-9.]+ hours: give fewer values", result.stderr)


@pytest.mark.parametrize(("typed", "code", "asked"), [("n\n", 2, True), ("y\n", 0, True), (None, 0, False)])
def test_a_grid_of_hours_is_asked_about(
    profile: Path, monkeypatch: pytest.MonkeyPatch, typed: str | None, code: int, asked: bool
) -> None:
    """No means no; yes, or --yes, runs it. Here every grid counts as long."""
    monkeypatch.setattr("pace.cli.what_if.LONG_S", -1.0)
    monkeypatch.setattr("pace.cli.what_if.stdin_is_a_terminal", lambda: True)
    result = run(profile, "--csv", *FEW, *([] if asked else ["--yes"]), typed=typed)
    assert result.exit_code == code
    assert ("Go on?" in result.stderr) is asked
    assert ("pace" in result.stdout) is (code == 0)


def test_a_service_that_is_not_there_is_given_up(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out is for a result; a closed port is given up after the time in which a service starts."""
    monkeypatch.setattr("pace.terminal.service_connection.STARTS_WITHIN_S", 0.5)
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port meanwhile
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        done = run(profile, "--bandwidth-gbps", "10", "--service", url, "--timeout-s", "1e6")
    assert done.exit_code == 3
    assert f"{url}: no PACE service answers" in " ".join(done.stderr.split())
