"""The examples of all pages but the guides run as they stand, on real ranks and against a real service."""

import re
from pathlib import Path

import pytest

from tests.documentation.pages import AROUND, GUIDES, PAGES, QUICKSTART, Block, Reader, blocks, run_examples
from tests.preloaded import Programs


@pytest.mark.parametrize("page", [*PAGES, *GUIDES], ids=lambda page: page.stem)
def test_every_example_can_be_run_or_says_why_not(page: Path) -> None:
    """A block has a language, and what cannot run has a reason in words."""
    for block in blocks(page):
        assert block.language in ("python", "diff", "bash", "json", "text"), block.text
        assert not block.note or len(block.reason.split()) > 1 or block.around or block.prints, block.note
        assert not block.around or (AROUND / block.around).is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [page for page in PAGES if page != QUICKSTART], ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, programs: Programs, tmp_path: Path) -> None:
    """A reader who pastes every block, from first to last, meets no error."""
    run_examples(page, programs, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quickstart_does_what_it_says(programs: Programs, tmp_path: Path) -> None:
    """Both ranks end with the same weights; the service gives the library's schedule, and knows the job."""
    with Reader(tmp_path, programs) as reader:
        for block in blocks(QUICKSTART):
            reader.run(block)
        reader.run(Block(language="bash", text="curl -sf http://127.0.0.1:8080/v1/jobs"))
    printed = [set(re.findall(r"weights (-?[\d.]+)", said)) for said in reader.outputs if "weights" in said]

    assert (tmp_path / "answer.json").read_bytes() == (tmp_path / "schedule.json").read_bytes()
    assert (tmp_path / "schedule.png").stat().st_size > 10_000
    assert [len(weights) for weights in printed] == [1, 1]  # both ranks end with the same weights
    assert printed[0] == printed[1]  # whatever the service answers
    assert "quickstart" in reader.outputs[-1]
