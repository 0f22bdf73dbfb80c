"""Docstrings and comments cite only what readers have: files of this repository, papers and addresses."""

import re

from tests.preloaded import ROOT

FOLDERS = ("pace", "solver", "runtime", "api", "benchmarks", "examples", "tests", "packs")


def test_cited_pages_exist() -> None:
    """A page that moves takes its citations along; nothing outside the repository is cited."""
    lost = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        lost += [
            f"{path}: {page}"
            for page in re.findall(r"(?:packs/\w+/)?docs/[\w/-]+\.md", text)
            if not (ROOT / page).exists()
        ]
        if path.name != "test_citations.py":
            lost += [f"{path}: {name}" for name in re.findall(r"\bDESIGN\b|\b(?:STYLE|ROADMAP)\.md\b", text)]
    assert lost == []
