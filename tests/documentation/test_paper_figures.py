"""The page of every figure is what its command prints; no row lacks a reason, no quote its place."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.papers.every_figure import (
    ASYNCHRONOUS,
    DOCS,
    ROWS,
    STATUSES,
    SYNCHRONOUS,
    markdown,
    papers,
)

# The last number of a figure and of a table in each paper. The versions of TicTac number them differently.
LAST_FIGURES = {"PACE": 10, "ByteScheduler": 14, "TicTac": 0, "Throughput prediction": 25, "MLfabric": 9}
LAST_TABLES = {"PACE": 2, "ByteScheduler": 1, "TicTac": 0, "Throughput prediction": 1, "MLfabric": 2}
ROMAN = {"I": 1, "II": 2}

QUOTES = tomllib.loads(ROWS.with_name("quotes.toml").read_text(encoding="utf-8"))
# The papers that each page quotes.
RESULTS = (DOCS / "results", *sorted(DOCS.parent.glob("packs/*/docs/results")))
PAGES = {
    "papers.md": ("PACE", "ByteScheduler"),
    "papers-servers.md": ("ByteScheduler",),
    "papers-tuner.md": ("ByteScheduler",),
    "papers-tictac.md": ("TicTac",),
    "papers-throughput.md": ("Throughput prediction",),
    "papers-mlfabric.md": ("MLfabric",),
    "papers-mlfabric-training.md": ("MLfabric",),
    "fabric.md": ("MLfabric",),
}


@pytest.mark.parametrize("page", [SYNCHRONOUS, ASYNCHRONOUS], ids=lambda page: page.stem)
def test_the_page_is_what_the_command_prints(page: Path) -> None:
    """A row that changes is written anew: ``python -m benchmarks papers.every_figure``."""
    assert page.read_text(encoding="utf-8") == markdown(page)


def test_every_row_has_a_status_and_a_reason() -> None:
    """Five papers; a result that is claimed to be re-enacted has a page, which is there."""
    listed = papers()
    assert len(listed) == 5
    assert {row["status"] for paper in listed for row in paper["item"]} == set(STATUSES)


@pytest.mark.parametrize("paper", papers(), ids=lambda paper: paper["name"])
@pytest.mark.parametrize(("kind", "last"), [("Figure", LAST_FIGURES), ("Table", LAST_TABLES)])
def test_no_figure_or_table_is_silently_absent(
    paper: dict[str, Any], kind: str, last: dict[str, int]
) -> None:
    """Every number from 1 to the paper's last is in a row."""
    listed = set()
    for row in paper["item"]:
        for numbers in re.findall(rf"{kind}s? ([^;]*?)(?= at|;|$)", row["names"]):
            for first, _, until in re.findall(r"(\d+|[IVX]+)[a-d]?( to (\d+))?", numbers):
                start = ROMAN.get(first) or int(first)
                listed |= set(range(start, int(until or start) + 1))
    assert listed == set(range(1, last[paper["name"]] + 1))


def numbers(text: str) -> set[str]:
    """Return the numbers of a text; those of names (VGG16, N2) and of places (Figure 8) are none."""
    text = re.sub(
        r"(Figures?|Tables?|[Ss]ections?|[Ee]quations?) \d+(\.\d)?(( to| and|,) \d+)* *(?=[;:,)]|$)",
        "",
        text,
    )
    found = re.findall(r"(?<![A-Za-z\d.])(?<![A-Za-z]-)\d[\d,]*(?:\.\d+)?", text.replace("95th", ""))
    return {f"{float(number.replace(',', '')):g}" for number in found}


def quoted(page: str) -> set[str]:
    """Return the numbers that a page gives as a paper's.

    They are in columns and rows of claims, in "(paper: ...)", and in sentences with "the paper says".
    """
    found: set[str] = set()
    columns: list[int] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            columns = []
        elif not columns:
            heads = [at for at, cell in enumerate(cells) if re.match("claim|the paper|published", cell)]
            columns = heads or [-1]
        elif columns != [-1]:
            for at in columns:
                found |= numbers(cells[at])
        if cells and cells[0] == "claim":
            found |= numbers(line)
    prose = " ".join(line for line in page.splitlines() if not line.startswith("|"))
    for said in re.findall(r"[Tt]he paper (?:says|has|draws|states) (.*?)(?:[.;] |$)", prose):
        found |= numbers(said)
    for said in re.findall(r"(?:paper:|claim:?) ([^();]*)", page.replace("\n", " ")):
        found |= numbers(said) if re.match(r"[+\d]|up to|over", said) else set()
    return found


def test_every_quoted_number_has_its_place_in_a_paper() -> None:
    """Numbers of pages and of the list of figures are in the table of quotes; each line of it is used."""
    used: dict[str, set[str]] = {paper: set() for paper in QUOTES}
    for name, of_papers in PAGES.items():
        known = {paper: numbers(" ".join(QUOTES[paper].values())) for paper in of_papers}
        (path,) = (folder / name for folder in RESULTS if (folder / name).exists())
        on_page = quoted(path.read_text(encoding="utf-8"))
        assert on_page
        assert on_page <= set.union(*known.values()), name
        for paper in of_papers:
            used[paper] |= on_page & known[paper]
    for listed in papers():
        name = listed["name"]
        numbers_of_paper = numbers(" ".join(QUOTES[name].values()))
        for row in listed["item"]:
            in_parentheses = numbers(" ".join(re.findall(r"\(([^)]*\d[^)]*)\)", row["text"])))
            assert in_parentheses <= numbers_of_paper, row["names"]
            used[name] |= in_parentheses
    unused = {
        (paper, place): numbers(text) - used[paper]
        for paper, places in QUOTES.items()
        for place, text in places.items()
        if not numbers(text) & used[paper]
    }
    assert unused == {}
