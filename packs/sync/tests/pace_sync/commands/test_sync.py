"""``pace sync``: what it prints, writes and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pace.cli import app
from tests.pace_sync.planning.problems import reshard_fields, sync_fields

TWO = sync_fields()["tensors"][:2]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """Return a weight-sync document on disk."""
    file = tmp_path / "sync.json"
    file.write_text(json.dumps(sync_fields()))
    return file


def outer_fields() -> dict[str, Any]:
    """Return the fields of an outer-sync document."""
    return {
        "name": "three layers",
        "layers": [{"name": f"layer {number}", "size_bytes": 4_000_000} for number in range(3)],
        "workers": 4,
        "step_s": 0.1,
        "period_steps": 20,
        "max_delay_steps": 5,
        "links": [{"name": "wan", "bytes_per_s": 1e8}],
    }


def run(*arguments: object) -> Result:
    """Run ``pace sync``."""
    return CliRunner().invoke(app, ["sync", *map(str, arguments)])


def test_plan_and_check(document: Path, tmp_path: Path) -> None:
    """A plan is described, written, and valid; changed by hand it is not, and the exit code is 1."""
    plan = tmp_path / "plan.json"
    made = run("plan", document, "-o", plan)
    assert made.exit_code == 0, made.output
    assert "any buckets in any order" in made.stdout
    assert "tensor by tensor" in made.stdout
    assert json.loads(run("plan", document, "--json").stdout) == json.loads(plan.read_text())
    checked = run("check", document, plan)
    assert (checked.exit_code, checked.stdout) == (0, f"{plan}: valid\n")
    wrong = json.loads(plan.read_text())
    wrong["predicted"]["pause_s"] *= 0.9
    plan.write_text(json.dumps(wrong))
    checked = run("check", document, plan, "--json")
    assert checked.exit_code == 1
    assert json.loads(checked.stdout)["violations"][0].startswith("predicted.pause_s")


def test_the_document_is_not_overwritten(document: Path, tmp_path: Path) -> None:
    """Whatever its path looks like."""
    before = document.read_bytes()
    refused = run("plan", document, "-o", f"{tmp_path}/../{tmp_path.name}/{document.name}")
    assert refused.exit_code == 2
    assert "is named twice" in refused.output
    assert document.read_bytes() == before


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (reshard_fields(), "from 4 senders to 2 receivers"),
        ({"sync": sync_fields(tensors=TWO), "changed": 0.05}, "asks for whole weights"),
    ],
)
def test_shards_and_deltas(fields: dict[str, Any], shown: str, tmp_path: Path) -> None:
    """The same commands plan and check documents of shards and of deltas."""
    document, plan = tmp_path / "document.json", tmp_path / "plan.json"
    document.write_text(json.dumps(fields))
    made = run("plan", document, "-o", plan)
    assert made.exit_code == 0, made.output
    assert shown in made.stdout
    assert json.loads(run("plan", document, "--json").stdout) == json.loads(plan.read_text())
    assert run("check", document, plan).stdout == f"{plan}: valid\n"
    wrong = json.loads(plan.read_text()) | {"problem_sha256": "0" * 64}
    plan.write_text(json.dumps(wrong))
    checked = run("check", document, plan)
    assert checked.exit_code == 1
    assert "problem_sha256 is that of another" in checked.output


def test_what_if(document: Path) -> None:
    """One row for each point, as a table and as JSON."""
    options = ("--bandwidth-gbps", "1,10", "--receivers", "2,3", "--credit-mb", "1")
    shown = run("what-if", document, *options)
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) == 5
    points = json.loads(run("what-if", document, *options, "--json").stdout)
    assert [point["receivers"] for point in points] == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("what-if", "--bandwidth-gbps", "0"), 2, "bandwidth 0: give positive numbers"),
        (("what-if", "--receivers", "x"), 2, "expected whole numbers"),
        (("what-if", "--credit-mb", "0.001"), 1, 'tensor "up" is cut after 6000 bytes'),
        (("what-if", "--bandwidth-gbps", "1:500:1"), 2, "500 points; at most 400 are allowed"),
        (("what-if", "--bandwidth-gbps", "inf"), 2, "expected numbers"),
        (("what-if", "--credit-mb", "nan"), 2, "expected numbers"),
        (("what-if", "--credit-mb", "-1"), 2, "credit_bytes -1e+06: give positive numbers"),
        (("what-if", "--receivers", "5-2"), 2, "expected whole numbers"),
        (("what-if", "--receivers", "1000000000000"), 2, "give at most 10,000"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    document: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """What is wrong, and the exit code of its kind."""
    result = run(arguments[0], document, *arguments[1:])
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1), result.output
    assert said in result.stderr


@pytest.mark.parametrize(
    ("command", "fields", "said"),
    [
        ("plan", {"workers": 1, "ops": []}, "this is another kind of document"),
        ("plan", {}, "this is another kind of document: it has none of name, tensors, sender, receivers"),
        ("plan", None, "the document is empty: expected JSON"),
        ("plan", {"problem_sha256": "0", "buckets": []}, "this is a plan: give the document for which"),
        ("plan", {"sync": sync_fields(), "changd": 0.5}, "changd: Extra inputs are not permitted"),
        ("what-if", reshard_fields(), "takes a weight-sync document, and this is a resharding one"),
        ("what-if", {"sync": sync_fields(), "changed": 0.5}, "and this is a delta-sync one"),
        ("plan", outer_fields(), "this is an outer-sync document: use `pace diloco`"),
        (
            "plan",
            sync_fields() | {"tensors": [{"name": "a", "size_bytes": -1}]},
            "at least 0 and below 9.22337e18 (got -1)",
        ),
    ],
)
def test_wrong_documents_are_refused(command: str, fields: Any, said: str, tmp_path: Path) -> None:
    """What the file is, and what was expected."""
    file = tmp_path / "other.json"
    file.write_text("" if fields is None else json.dumps(fields))
    result = run(command, file)
    assert result.exit_code == 1
    assert said in result.stderr
    if "changd" not in said:  # two faults: the misspelt field is also missing
        assert len(result.stderr.splitlines()) == 1
