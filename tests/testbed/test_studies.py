"""Every study can be found: in the list of the command and in the table of ``benchmarks/README.md``."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main, studies, summary

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_names_every_study_and_no_other() -> None:
    """A study that comes or goes changes the table of numbers, commands and pages."""
    readmes = [ROOT / "benchmarks" / "README.md", *ROOT.glob("packs/*/README.md")]
    named = set()
    for readme in readmes:
        table = readme.read_text(encoding="utf-8")
        named |= set(re.findall(r"`python -m benchmarks ([\w.]+)", table))
        pages = re.findall(r"\]\(([^)#]+)[^)]*\)", table)
        assert [page for page in pages if not (readme.parent / page).exists()] == []
    assert named == set(studies())


def test_every_study_says_what_it_measures() -> None:
    """The first line of its docstring stands in the list."""
    assert all(summary(path) for _, path in studies().values())


def test_unknown_studies_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names of those that there are."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "nothing"])
    assert main() == 2
    assert 'no study "nothing"' in capsys.readouterr().err


# Runs a study as if some packages were not installed.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
_, named, *sys.argv[1:] = sys.argv
missing = named.split(",")
sys.meta_path.insert(0, Missing())
from benchmarks.__main__ import main
sys.exit(main())
"""


def told_first(study: list[str], missing: str, said: str) -> None:
    """Run a study without packages (names with commas) and without programs: it ends with one line."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, *study],
        env={**os.environ, "PATH": "/nowhere"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert done.stderr.startswith(f"{study[0]}: {said}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "missing", "said"),
    [
        (["testbed"], "horovod", "the Python package horovod is not installed: run scripts/install"),
        (["testbed", "--chart", "x.png"], "horovod,matplotlib", "the Python package"),
        (["server_cpu"], "torch", "the Python package torch"),
        (["capture"], "transformers", "the Python package transformers"),
        (["web_page"], "playwright", "the Python package playwright"),
        (["service", "reads"], "", "needs `wrk`: apt-get install wrk"),
        (["embedding", "--tensorflow", "/nowhere"], "", "/nowhere: No such file"),
        (["allreduce_cost"], "", "the testbed "),
        (["compiled_sharding"], "", "the testbed "),
        (["throughput", "tcp"], "", "the testbed "),
        (["urgent_chunk"], "", "the testbed "),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_what_a_study_lacks_is_said_first(study: list[str], missing: str, said: str) -> None:
    """In one line, with exit status 3."""
    told_first(study, missing, said)


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
