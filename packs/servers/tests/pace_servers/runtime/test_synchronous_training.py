"""Synchronous training over parameter servers equals plain training, on real ranks over loopback."""

from tests.pace_servers.runtime.jobs import train_clipped, train_clipped_plainly, train_over_servers
from tests.runtime.launch import run_ranks
from tests.runtime.training import Case, difference, equal_bits, train_plainly

SIZE = 3


CASES = [
    Case(model="conv", optimizer="sgd", steps=6, double=True),
    Case(model="branches", optimizer="adam", steps=6, double=True),
    Case(model="conv", optimizer="adamw", steps=6, double=True, options={"mode": "auto"}),
    Case(model="transformer", optimizer="sgd", steps=6, double=True, options={"mode": "barrier"}),
    Case(model="transformer", optimizer="sgd", steps=6, double=True, options={"order": "static"}),
    Case(model="conv", optimizer="sgd", steps=6, options={"compression": "bf16", "op": "average"}),
    Case(model="mixed", optimizer="adam", steps=6, options={"order": "overtake"}),
]


def test_weights_equal_plain_training() -> None:
    """Law 1: weights of plain training in float64, and the same bits on all ranks."""
    ranks = run_ranks(train_over_servers, SIZE, CASES)
    for number, case in enumerate(CASES):
        trained = [each[number] for each in ranks]
        expected = train_plainly(case, SIZE)
        rounded = 0.05 if "compression" in case.options else 1e-4
        assert difference(trained[0], expected) < (1e-12 if case.double else rounded), case
        assert all(equal_bits(trained[0], other) for other in trained[1:]), case


def test_clipping_and_accumulation_over_servers() -> None:
    """Weights of plain training with unused parameters; "deterministic" gives equal bits in a second run."""
    ranks = run_ranks(train_clipped, SIZE)
    expected = train_clipped_plainly(SIZE)
    for once, again in ranks:
        assert difference(once, expected) < 1e-12
        assert equal_bits(once, again)
        assert equal_bits(once, ranks[0][0])
