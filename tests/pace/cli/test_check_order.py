"""``pace check-order``: what it prints and how it ends."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from pace.cli import app

SUM = {"op": "all-reduce", "group": "world", "name": "loss", "size_bytes": 4}


def run(path: Path, last: dict[str, Any], *options: str) -> Result:
    """Check a job of two ranks, of which one calls `last` where the other sums the loss."""
    document = {
        "groups": [{"name": "world", "communicators": [[0, 1]]}],
        "programs": [
            {"ranks": [0], "threads": [{"operations": [SUM, SUM]}]},
            {"ranks": [1], "threads": [{"operations": [SUM, last]}]},
        ],
    }
    file = path / "job.json"
    file.write_text(json.dumps(document))
    return CliRunner().invoke(app, ["check-order", str(file), *options])


def test_a_proof(tmp_path: Path) -> None:
    """Exit code 0, and what the proof does not cover."""
    result = run(tmp_path, SUM)
    assert result.exit_code == 0, result.output
    assert "cannot hang: 2 ranks, 4 operations" in result.stdout
    assert "resources of NCCL" in result.stdout


def test_a_counterexample(tmp_path: Path) -> None:
    """Exit code 1, with both sides of the difference."""
    result = run(tmp_path, {**SUM, "op": "barrier"})
    assert result.exit_code == 1
    assert 'rank 0 calls all-reduce "loss" (number 2 of group "world"' in result.stdout
    assert 'rank 1 calls barrier "loss" (number 2 of group "world"' in result.stdout


def test_json_is_one_document(tmp_path: Path) -> None:
    """For scripts."""
    result = run(tmp_path, {**SUM, "size_bytes": 8}, "--json", "--streams", "launch-order")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (document["cannot_hang"], document["findings"][0]["kind"]) == (False, "size")
    assert document["streams"] == "launch-order"


def test_the_page_is_written(tmp_path: Path) -> None:
    """Beside the text, whatever the answer."""
    page = tmp_path / "page.html"
    assert run(tmp_path, SUM, "--html", str(page)).exit_code == 0
    assert "cannot hang" in page.read_text()
    assert run(tmp_path, {**SUM, "op": "barrier"}, "--html", str(page)).exit_code == 1
    assert "can hang" in page.read_text()


def test_refusals(tmp_path: Path) -> None:
    """One clear line for what is no job program, and for a group that does not exist."""
    result = run(tmp_path, {**SUM, "group": "nowhere"})
    assert result.exit_code == 1
    assert 'rank 1 calls group "nowhere": no such group' in result.stderr
    assert CliRunner().invoke(app, ["check-order", str(tmp_path / "none.json")]).exit_code == 2
    assert run(tmp_path, SUM, "--launch-slots", "0").exit_code == 2
    stray = tmp_path / "notes.txt"
    stray.write_text("nothing")
    for files in ([stray], [tmp_path / "job.json", stray]):
        result = CliRunner().invoke(app, ["check-order", *map(str, files)])
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "notes.txt: expected a job program" in result.stderr
