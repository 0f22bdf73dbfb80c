"""The page of every figure of the papers is what its command prints, and no row is without a reason."""

from pathlib import Path

import pytest

from benchmarks.studies.papers.every_figure import ASYNCHRONOUS, STATUSES, SYNCHRONOUS, markdown, papers


@pytest.mark.parametrize("page", [SYNCHRONOUS, ASYNCHRONOUS], ids=lambda page: page.stem)
def test_the_page_is_what_the_command_prints(page: Path) -> None:
    """A row that changes is written anew: ``python -m benchmarks papers.every_figure``."""
    assert page.read_text(encoding="utf-8") == markdown(page)


def test_every_row_has_a_status_and_a_reason() -> None:
    """Five papers; a result that is claimed to be re-enacted has a page, which is there."""
    listed = papers()
    assert len(listed) == 5
    assert {row["status"] for paper in listed for row in paper["item"]} == set(STATUSES)
