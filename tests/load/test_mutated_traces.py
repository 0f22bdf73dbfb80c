"""The short form of ``mutated_traces.py``."""

import json
from pathlib import Path

from tests.load.mutated_traces import originals, search


def test_mutants_of_traces_are_answered_or_refused(tmp_path: Path) -> None:
    """A few of every kind of job; some are still good enough to be answered."""
    texts = {name: json.dumps(document).encode() for name, document in originals().items()}
    counts, failures = search(tmp_path, texts, mutants=4 * len(texts), seed=1)
    assert failures == []
    assert counts["answered"] > 0
    assert counts["refused"] > 0
