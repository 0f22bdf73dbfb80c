"""The steps document that docs/throughput.md shows is one; tests/documentation runs the page's examples."""

import re
from pathlib import Path

from pace import parse_steps

PAGE = Path(__file__).parents[3].joinpath("docs", "throughput.md").read_text(encoding="utf-8")


def test_the_steps_document_is_valid() -> None:
    """A reader can start from it."""
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert parse_steps(text).name == "one layer"
