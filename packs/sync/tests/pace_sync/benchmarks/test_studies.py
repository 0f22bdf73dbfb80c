"""What studies of weights and DiLoCo refuse before they measure."""

import pytest

from tests.testbed.test_studies import told_first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "missing", "said"),
    [
        (["diloco"], "torch", "the Python package torch"),
        (["diloco.failures", "--torchft", "/nowhere"], "torchft", "the Python package torchft"),
        (["weight_sync"], "", "the testbed "),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_what_a_study_lacks_is_said_first(study: list[str], missing: str, said: str) -> None:
    """In one line, with exit status 3."""
    told_first(study, missing, said)
