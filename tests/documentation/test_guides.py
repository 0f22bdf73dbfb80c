"""The examples of the guides run as they stand, on real ranks and against a real service."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.documentation.pages import GUIDES, run_examples
from tests.preloaded import Programs

# What several programs of a page load, which takes each of them seconds.
FRAMEWORKS = {
    "train-compiled": ("tests.runtime.inductor.compiled_once", "pace.runtime.inductor"),
    "train-lightning": ("lightning.pytorch",),
    "train-accelerate": ("accelerate", "transformers.trainer"),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_examples_of_a_guide_run(
    page: Path, programs: Programs, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A reader who pastes every block, from first to last, meets no error."""
    with ExitStack() as stack:
        if page.stem in FRAMEWORKS:
            others = Programs(tmp_path_factory.mktemp("programs"), *FRAMEWORKS[page.stem])
            programs = stack.enter_context(others)
        run_examples(page, programs, tmp_path)
