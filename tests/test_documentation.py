"""What the documentation says of files and names is true. scripts/docs checks the links between its pages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WALKS = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
IN_FILE = re.compile(r"`(\w+)`\s+in\s+`([\w/]+\.py)`")


def names_in(path: Path) -> set[str]:
    """Return what a module defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_the_walks_name_files_that_are_there() -> None:
    """A file that moves takes its mention along."""
    files = set(re.findall(r"`([\w/]+\.(?:py|toml))`", WALKS))
    assert len(files) > 30
    assert sorted(name for name in files if not (ROOT / name).is_file()) == []


@pytest.mark.parametrize(("name", "file"), sorted(set(IN_FILE.findall(WALKS))))
def test_the_walks_name_what_is_in_the_files(name: str, file: str) -> None:
    """A function or class that gets another name, or another home, changes the walk."""
    assert name in names_in(ROOT / file)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    """Pages at the repository's root link to files that are there."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http", "mailto"))]
    assert [target for target in local if not (ROOT / target).exists()] == []
