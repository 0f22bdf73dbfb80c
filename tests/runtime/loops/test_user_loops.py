"""Laws 1, 3 and 4 in loops as users write them: same weights and same readings as plain training."""

import traceback
from typing import Any, cast

import numpy as np
import pytest

from tests.runtime.launch import Backend, run_ranks
from tests.runtime.loops.user_loops import LOOPS, run_loop, run_plainly
from tests.runtime.training import difference, equal_bits

SIZE = 2


def _run_all(rank: int, _size: int, transport: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, loop in LOOPS.items():
        try:
            found[name] = run_loop(loop, rank, transport)
        except Exception:
            # The other ranks fail in the same loop; the loops after it still count.
            found[name] = traceback.format_exc()
    return found


@pytest.fixture(scope="module")
def outcomes(transport: str) -> list[dict[str, Any]]:
    """All loops on both ranks, in the same processes."""
    return run_ranks(_run_all, SIZE, transport, backend=cast("Backend", transport), timeout_s=240)


@pytest.mark.parametrize("name", LOOPS)
def test_loop_gives_what_plain_training_gives(outcomes: list[dict[str, Any]], name: str) -> None:
    """Weights, and whatever else the loop looked at, equal those of plain training."""
    for outcome in outcomes:
        assert not isinstance(outcome[name], str), outcome[name]
    expected_weights, expected = run_plainly(LOOPS[name], SIZE)
    trained, said = outcomes[0][name]
    assert difference(trained, expected_weights) <= 1e-5
    if expected is not None:
        for left, right in zip(said, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-4, atol=1e-6)
    assert equal_bits(trained, outcomes[1][name][0])
