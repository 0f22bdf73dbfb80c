"""Transfer plans that say nothing that could be checked."""

import math

import pytest
from pydantic import ValidationError

from pace_fabric.documents.transfer_plan import Commit, Transfer

TRANSFER = {"id": 0, "from": "a", "to": "b", "updates": ["u"], "size_bytes": 1, "start_s": 0.0, "end_s": 1.0}


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_rates_and_weights_are_finite(rate: float) -> None:
    """A sum with one that is not a number exceeds no link, and what comes after it would not either."""
    assert Transfer.model_validate(TRANSFER | {"rates": [(0.0, 1.0, 1.0)]}).rates == ((0.0, 1.0, 1.0),)
    with pytest.raises(ValidationError, match="expected a number above"):
        Transfer.model_validate(TRANSFER | {"rates": [(0.0, 1.0, rate)]})
    with pytest.raises(ValidationError, match="expected a number above"):
        Commit.model_validate({"updates": ["u"], "at_s": 0.0, "version": 1, "weights": [rate]})
