"""The published documentation: its list of versions, and where its front page leads."""

import json
from pathlib import Path

from scripts.lib.docs_versions import write_versions


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    """Versions are ordered as versions, not as text; folders without a page are none."""
    for version in ["0.9.0", "0.10.0", "0.1.0"]:
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    (tmp_path / "assets").mkdir()
    assert write_versions(tmp_path) == ["0.10.0", "0.9.0", "0.1.0"]
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0", "0.1.0"]
    assert 'url=0.10.0/index.html"' in (tmp_path / "index.html").read_text()
