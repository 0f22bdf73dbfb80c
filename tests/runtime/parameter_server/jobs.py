"""Training over parameter servers, as tests of several modules run it on real ranks."""

from typing import Any

from tests.runtime.training import Case, Weights, train_case


def train_over_servers(rank: int, _size: int, cases: list[Case]) -> list[Weights]:
    """Train one case after the other in the same processes, with a server in every rank."""
    found = []
    for case in cases:
        options: dict[str, Any] = {"backend": "ps", **case.options}
        found.append(
            train_case(
                rank,
                "gloo",
                Case(
                    model=case.model,
                    optimizer=case.optimizer,
                    steps=case.steps,
                    options=options,
                    double=case.double,
                ),
            )
        )
    return found
