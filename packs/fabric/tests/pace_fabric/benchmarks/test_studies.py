"""What studies of the fabric refuse before they measure."""

import pytest

from benchmarks.__main__ import main
from tests.testbed.test_studies import told_first


@pytest.mark.parametrize("wrong", [["--networks", "N4"], ["--compute", "C1,C4"]])
def test_the_study_refuses_unknown_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    """Before anything is measured, with the names of those that there are."""
    monkeypatch.setattr("sys.argv", ["benchmarks", "fabric", *wrong])
    with pytest.raises(SystemExit):
        main()
    assert "expected one of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "missing", "said"),
    [
        (["fabric"], "torch", "the Python package torch"),
        (["papers.mlfabric_training"], "sklearn", "the Python package sklearn"),
        (["fabric.chain"], "", "the testbed "),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_what_a_study_lacks_is_said_first(study: list[str], missing: str, said: str) -> None:
    """In one line, with exit status 3."""
    told_first(study, missing, said)
