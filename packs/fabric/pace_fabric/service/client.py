"""The service's client, with the fabric's requests. Needs ``pace-scheduler[client]``."""

from pace.client.http import Client
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.transfer_plan import TransferOptions, TransferPlan
from pace_fabric.service.documents import TransferPlanRequest


class FabricServiceClient(Client):
    """A connection to a service with this pack."""

    def plan_transfers(
        self, network: FabricNetwork, batch: UpdateBatch, options: TransferOptions | None = None
    ) -> TransferPlan:
        """Let the service plan the transfers of a batch of updates, and return the plan.

        Raises
        ------
        InvalidFabric, InvalidOptions
            If the service refuses them.
        """
        asked = TransferPlanRequest(network=network, batch=batch, options=options or TransferOptions())
        request = asked.model_dump(mode="json")
        answer = self._request(self._deadline(), "POST", "/v1/transfer-plans", json=request)
        plan = self._parse(answer, TransferPlan)
        if plan.batch_sha256 != batch.sha256:
            self._nonsense("a transfer plan for another batch")
        return plan
