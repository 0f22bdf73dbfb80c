"""The tables of training options name everything that there is, and nothing else."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from pace.runtime.entry_point import TrainingOptions
from pace.runtime.options import AllReduce, Plan, Replanning, Tune
from pace.runtime.torch import DistributedOptimizer
from tests.documentation.pages import documentation_pages
from tests.preloaded import ROOT

REFERENCE = ROOT / "docs" / "reference"


def first_cells(page: str) -> set[str]:
    """Return what stands in code in the first column of a page's tables."""
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def part(page: str, heading: str) -> str:
    """Return what a page says under a heading."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("options", "heading"), [(Plan, "Plan"), (Replanning, "Plan"), (Tune, "Tune"), (AllReduce, "AllReduce")]
)
def test_every_option_is_listed(options: type, heading: str) -> None:
    """A field that is added gets a row."""
    names = {each.name for each in fields(options)}
    assert names <= first_cells(part("training-options.md", heading))


def test_every_argument_is_listed() -> None:
    """Of the front door, and those that all front doors share."""
    own = {
        name
        for name, each in signature(DistributedOptimizer).parameters.items()
        if each.kind == each.KEYWORD_ONLY
    }
    listed = first_cells(part("training-options.md", "Arguments"))
    assert own | set(TrainingOptions.__annotations__) == listed


def test_every_variable_is_listed() -> None:
    """What the runtime reads from the environment."""
    read: set[str] = set()
    for path in (ROOT / "runtime").rglob("*.py"):
        read |= set(re.findall(r'"(PACE_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert read == first_cells(part("training-options.md", "Environment variables"))


def test_links_between_pages_lead_somewhere() -> None:
    """Also where a page is read in the repository."""
    pages = [path for path in documentation_pages() if "results" not in path.parts]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http")
        and not (page.parent / target).exists()
        and Path(target).name != "cli.md"  # generated
    ]
    assert dead == []
