"""The pictures of the concepts show what the code computes today."""

import re
import runpy
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "images" / "concepts"


def words_in(picture: Path) -> list[str]:
    """Return the texts of an SVG file: names, numbers and times."""
    return re.findall(r"<text[^>]*>([^<]*)<", picture.read_text(encoding="utf-8"))


def test_the_committed_pictures_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn again, they have the same texts; if not, run scripts/pictures and look at them."""
    program = ROOT / "scripts" / "lib" / "concept_pictures.py"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", [str(program), str(tmp_path)])
    with matplotlib.rc_context():
        runpy.run_path(str(program), run_name="__main__")
    names = sorted(path.name for path in COMMITTED.glob("*.svg"))
    assert names == sorted(path.name for path in tmp_path.glob("*.svg"))
    for name in names:
        assert len(words_in(COMMITTED / name)) > 5
        assert words_in(tmp_path / name) == words_in(COMMITTED / name)
