"""Transfer plans over HTTP: the library's own plan, refused by name, and through the client."""

import gzip
import json
from pathlib import Path

import pytest

from pace.errors import InvalidOptions
from pace_fabric.checker.transfers import check_transfers
from pace_fabric.documents.reading import load_batch, load_network
from pace_fabric.documents.transfer_plan import TransferOptions
from pace_fabric.errors import InvalidFabric
from pace_fabric.plan import plan_transfers
from pace_fabric.service.client import FabricServiceClient
from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

EXAMPLES = Path(__file__).parents[3] / "examples"
NETWORK, BATCH = load_network(EXAMPLES / "network.json"), load_batch(EXAMPLES / "batch.json")


def request() -> dict[str, object]:
    """Return the examples as a request."""
    return {
        "network": json.loads((EXAMPLES / "network.json").read_text()),
        "batch": json.loads((EXAMPLES / "batch.json").read_text()),
        "options": {"late": "hold"},
    }


@ON_SQLITE
def test_the_answer_is_the_librarys_plan(service: Caller) -> None:
    """Byte for byte, compressed or not, each time."""
    answer = service.http.post("/v1/transfer-plans", json=request())
    assert answer.status_code == 200, answer.text
    plan = plan_transfers(NETWORK, BATCH, TransferOptions(late="hold"))
    assert answer.content == plan.to_json()
    compressed = gzip.compress(json.dumps(request()).encode())
    again = service.http.post(
        "/v1/transfer-plans",
        content=compressed,
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )
    assert again.content == answer.content


@ON_SQLITE
def test_faults_are_named(service: Caller) -> None:
    """What is wrong, and where."""
    without_server = request() | {"network": {"hosts": [], "server": "s"}}
    answer = service.http.post("/v1/transfer-plans", json=without_server)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:pace:problem:invalid-request")
    assert "hosts" in answer.json()["detail"]


@ON_SQLITE
def test_the_client_plans_and_checks(service: Caller) -> None:
    """Errors are those of the library."""
    with FabricServiceClient(service.url, service.token, timeout_s=250) as client:
        assert check_transfers(NETWORK, BATCH, client.plan_transfers(NETWORK, BATCH)) == []
        elsewhere = BATCH.updates[0].model_copy(update={"host": "elsewhere"})
        with pytest.raises(InvalidFabric, match="elsewhere"):
            client.plan_transfers(NETWORK, BATCH.model_copy(update={"updates": (elsewhere,)}))
        with pytest.raises(InvalidOptions, match="exact"):
            client.plan_transfers(NETWORK, BATCH, TransferOptions(order="exact"))
