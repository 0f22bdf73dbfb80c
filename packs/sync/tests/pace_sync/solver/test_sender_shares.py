"""Who sends which bytes: everyone's are sent, and no split lets the busiest sender end earlier."""

import numpy as np
import pytest

from pace_sync.solver.sender_shares import share_among_senders


@pytest.mark.parametrize("rate", [1e-300, 1e-3, 1.0, 1e6, 1e12, 1e20, 1e100, 1e300])
def test_rates_may_differ_by_any_factor(rate: float) -> None:
    """The first class both senders hold; each of the others only one of them holds."""
    sizes = np.array([6.0, 3.0, 1.0])
    holds = np.array([[True, True], [True, False], [False, True]])
    rates = np.array([rate, 1.0])
    found = share_among_senders(sizes, holds, rates)
    assert found.shares.sum(axis=1) == pytest.approx(sizes)
    assert not found.shares[~holds].any()
    least = max(10.0 / (rate + 1.0), 3.0 / rate, 1.0)
    assert found.bound_s == pytest.approx(least, rel=1e-5)
    assert (found.shares.sum(axis=0) / rates).max() == pytest.approx(least, rel=1e-5)


def test_the_busiest_sender_meets_its_proof() -> None:
    """Rates over nine decades, sizes over four: the proof is the time of the busiest."""
    random = np.random.default_rng(3)
    for _ in range(100):
        num_classes, num_senders = random.integers(1, 7, 2)
        sizes = 10.0 ** random.uniform(3, 7, num_classes)
        rates = 10.0 ** random.uniform(3, 12, num_senders)
        holds = random.random((num_classes, num_senders)) < 0.5
        holds[np.arange(num_classes), random.integers(0, num_senders, num_classes)] = True
        found = share_among_senders(sizes, holds, rates)
        assert not found.shares[~holds].any()
        assert found.shares.sum(axis=1) == pytest.approx(sizes)
        seconds = found.shares.sum(axis=0) / rates
        alone = ~holds[:, ~found.tight].any(axis=1)
        assert found.bound_s == pytest.approx(sizes[alone].sum() / rates[found.tight].sum())
        assert found.bound_s <= seconds.max() * (1 + 1e-9)
        assert seconds.max() <= found.bound_s * (1 + 1e-4)
