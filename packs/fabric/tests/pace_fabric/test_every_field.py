"""No field of a transfer plan is left unread; see ``tests.pace.checker.test_every_field``."""

from functools import cache

import pytest

from pace_fabric.checker.transfers import check_transfers
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.reading import parse_document
from pace_fabric.documents.transfer_plan import TransferOptions, TransferPlan
from pace_fabric.plan import plan_transfers
from tests.pace.checker.every_field import accepted_changes, donors_of
from tests.pace_fabric.batches import WORKERS, batch_of, network_of, whole

# The plan is judged by the options that it names. How late the server would have committed without a replica
# does not follow from it. The same update may have come to a host with an earlier transfer, too.
GIVEN = {
    "solver",
    "rule",
    "late",
    "check",
    "replica.delay_s",
    "replica.delay_s less",
    "transfers.#.after.# less",
}


def direct() -> tuple[FabricNetwork, UpdateBatch]:
    """Return three updates without a bound, a replica or aggregators."""
    return network_of(WORKERS), batch_of(
        {"u0": (100, "h0", 100), "u1": (50, "h1", 99), "u2": (100, "h3", 98)}, bound=None
    )


PROBLEMS = {
    "whole": (*whole(), TransferOptions()),
    "direct": (*direct(), TransferOptions()),
    "downweight": (*whole(), TransferOptions(late="downweight")),
    "hold": (*whole(), TransferOptions(late="hold")),
    "paper": (*whole(), TransferOptions(rule="paper", check="batch-end")),
}


@cache
def plans() -> dict[str, TransferPlan]:
    """Return the plan of each problem."""
    return {name: plan_transfers(*problem) for name, problem in PROBLEMS.items()}


def test_what_was_not_in_the_way_is_no_reason_to_drop() -> None:
    """Witnesses are updates of the batch that could be committed, and not one another's."""
    network, batch, _ = PROBLEMS["whole"]
    document = plans()["whole"].model_dump()
    for drops, said in (
        ([("u3", "infeasible", ["u5"]), ("u5", "infeasible", ["u3"])], "witnesses of one another: u3, u5"),
        ([("u3", "overtaken", ["u5", "u0", "u2"]), ("u5", "expired", [])], 'witness "u5" is expired'),
        ([("u3", "expired", []), ("u5", "expired", ["u0"])], "needs no witnesses"),
        ([("u3", "expired", []), ("u5", "overtaken", ["u0"])], "and is expired"),
    ):
        document["dropped"] = [dict(zip(("id", "reason", "witness"), drop, strict=True)) for drop in drops]
        forged = TransferPlan.model_validate(document)
        assert any(said in fault for fault in check_transfers(network, batch, forged)), said


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_field_is_judged(name: str) -> None:
    """Only options and records of how the plan was made may change."""
    network, batch, _ = PROBLEMS[name]
    accepted = accepted_changes(
        plans()[name],
        lambda document: check_transfers(network, batch, parse_document(TransferPlan, document)),
        donors_of(plans().values()),
    )
    assert accepted <= GIVEN
