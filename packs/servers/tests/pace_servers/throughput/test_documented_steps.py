"""What packs/servers/docs/throughput.md shows can be followed; another test runs the page's examples."""

import re
from pathlib import Path

from pace import parse_steps
from pace_servers import PredictionOptions, predict
from tests.pace.documents.step_documents import pull_compute_push

PAGE = Path(__file__).parents[3].joinpath("docs", "throughput.md").read_text(encoding="utf-8")


def test_the_steps_document_is_valid() -> None:
    """A reader can start from it."""
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert parse_steps(text).name == "one layer"


def test_tensorflows_recipe_records_enough_steps() -> None:
    """Even if one step in eight is dropped, as of a recording here, no prediction says that there are few."""
    (traced,) = re.findall(r"for _ in range\((\d+)\):  # some may be dropped", PAGE)
    document = pull_compute_push()

    def says_few(count: int) -> bool:
        found = predict(document.replace(steps=document.steps[:1] * count), PredictionOptions(workers=(1,)))
        return any("30 or more" in note for note in found.notes)

    assert says_few(29)
    assert not says_few(int(traced) * 7 // 8)
