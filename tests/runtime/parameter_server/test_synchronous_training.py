"""Synchronous training over parameter servers equals plain training, on real ranks over loopback."""

from tests.runtime.launch import run_ranks
from tests.runtime.parameter_server.jobs import train_over_servers
from tests.runtime.training import Case, difference, equal_bits, train_plainly

SIZE = 3


CASES = [
    Case(model="conv", optimizer="sgd", steps=6, double=True),
    Case(model="branches", optimizer="adam", steps=6, double=True),
    Case(model="conv", optimizer="adamw", steps=6, double=True, options={"mode": "auto"}),
    Case(model="transformer", optimizer="sgd", steps=6, double=True, options={"mode": "barrier"}),
    Case(model="transformer", optimizer="sgd", steps=6, double=True, options={"order": "static"}),
    Case(model="mixed", optimizer="adam", steps=6, options={"order": "overtake"}),
]


def test_weights_equal_plain_training() -> None:
    """Law 1: weights of plain training in float64, and the same bits on all ranks."""
    ranks = run_ranks(train_over_servers, SIZE, CASES)
    for number, case in enumerate(CASES):
        trained = [each[number] for each in ranks]
        expected = train_plainly(case, SIZE)
        assert difference(trained[0], expected) < (1e-12 if case.double else 1e-4), case
        assert all(equal_bits(trained[0], other) for other in trained[1:]), case
