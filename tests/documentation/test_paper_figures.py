"""The page of every figure of the papers is what its command prints, and no row is without a reason."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.papers.every_figure import ASYNCHRONOUS, STATUSES, SYNCHRONOUS, markdown, papers

# The last number of a figure and of a table in each paper.
LAST_FIGURES = {"PACE": 10, "ByteScheduler": 14, "TicTac": 10, "Throughput prediction": 25, "MLfabric": 9}
LAST_TABLES = {"PACE": 2, "ByteScheduler": 1, "TicTac": 0, "Throughput prediction": 1, "MLfabric": 2}
ROMAN = {"I": 1, "II": 2}


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
