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


def places_in(picture: Path) -> list[float]:
    """Return the coordinates of all shapes and lines of an SVG file, in points."""
    paths = re.findall(r'<path d="([^"]*)"', picture.read_text(encoding="utf-8"))
    return [float(number) for path in paths for number in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_the_committed_pictures_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn again, they have the same texts and shapes; if not, run scripts/pictures and look at them."""
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
        assert places_in(tmp_path / name) == pytest.approx(places_in(COMMITTED / name), abs=0.5)
