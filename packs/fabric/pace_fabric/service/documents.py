"""Documents of the HTTP interface for transfer plans and simulated fabric runs."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from pace.client.documents import ResourceId
from pace.documents.base import ComputedDocument, Document
from pace.documents.schedule import Sha256
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.documents.transfer_plan import TransferOptions

FabricPolicyName = Literal[
    "mlfabric-a", "mlfabric-s", "async", "chain", "ring", "tree", "ssp", "fedbuff", "quorum"
]


class TransferPlanRequest(Document):
    """Body of ``POST /v1/transfer-plans``: the answer is the transfer plan itself."""

    network: FabricNetwork
    batch: UpdateBatch
    options: TransferOptions = TransferOptions()


def example_transfer_plan_request() -> dict[str, object]:
    """Return the request of two updates that OpenAPI shows as an example."""
    hosts = [
        {"name": name, "up_bytes_per_s": 1.25e9, "down_bytes_per_s": 1.25e9} for name in ("h0", "h1", "s")
    ]
    updates = [
        {"id": f"u{i}", "host": f"h{i}", "size_bytes": 100_000_000, "version": 93 + i} for i in range(2)
    ]
    return {
        "network": {"hosts": hosts, "server": "s", "aggregators": ["h0"]},
        "batch": {"version": 100, "delay_bound": 30, "updates": updates},
        "options": {"order": "search"},
    }


class FabricRunRequest(Document):
    """Body of ``POST /v1/fabric-runs``: a scenario, and the policies to simulate it under."""

    scenario: FabricScenario
    policies: Annotated[tuple[FabricPolicyName, ...], Field(min_length=1, max_length=8)] = (
        "mlfabric-a",
        "ring",
    )


class FabricPolicyResult(ComputedDocument):
    """Result of a run under one policy; the fields are those of ``pace fabric simulate --json``."""

    policy: FabricPolicyName
    duration_s: float
    commits: int
    commits_per_s: float
    iteration_s: float
    dropped: int
    drop_rate: float
    mean_delay: float
    max_delay: int
    server_bytes: float
    replica_bytes: float
    mean_batch: float


class FabricRunResult(Document):
    """A scenario's runs, in the order of the request's policies."""

    policies: tuple[FabricPolicyResult, ...]


class FabricRunSummary(Document):
    """Stored runs without their content.

    Attributes
    ----------
    id
        Derived from scenario, policies and version: equal requests give equal identifiers.
    """

    id: ResourceId
    name: str
    scenario_sha256: Sha256
    num_policies: int
    created_at: datetime


class FabricRunResource(FabricRunSummary):
    """Stored runs."""

    run: FabricRunResult
