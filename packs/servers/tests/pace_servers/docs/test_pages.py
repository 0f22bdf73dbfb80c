"""The examples of this pack's pages run as they stand."""

from pathlib import Path

import pytest

from tests.documentation.pages import run_examples
from tests.preloaded import Programs

PACK = Path(__file__).parents[3]
PAGES = [PACK / "README.md", *sorted(PACK.glob("docs/*.md")), *sorted(PACK.glob("docs/guides/*.md"))]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, programs: Programs, tmp_path: Path) -> None:
    """A reader who pastes every block, from first to last, meets no error."""
    run_examples(page, programs, tmp_path)
