"""Every study can be found: in the list of the command and in the table of ``benchmarks/README.md``."""

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main, studies, summary

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_names_every_study_and_no_other() -> None:
    """A study that comes or goes changes the table of numbers, commands and pages."""
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`python -m benchmarks ([\w.]+)", table)) == set(studies())
    pages = re.findall(r"\]\(([^)#]+)[^)]*\)", table)
    assert [page for page in pages if not (ROOT / "benchmarks" / page).exists()] == []


def test_every_study_says_what_it_measures() -> None:
    """The first line of its docstring stands in the list."""
    assert all(summary(path) for path in studies().values())


def test_unknown_studies_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names of those that there are."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "nothing"])
    assert main() == 2
    assert 'no study "nothing"' in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--networks", "N4"], ["--compute", "C1,C4"]])
def test_the_fabric_study_refuses_unknown_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    """Before anything is measured, with the names of those that there are."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "fabric", *wrong])
    with pytest.raises(SystemExit):
        main()
    assert "expected one of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["testbed", "solver", "throughput", "papers.who_wins"])
def test_a_study_shows_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Under the name by which it was called."""
    monkeypatch.setattr("sys.argv", ["benchmarks", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out
