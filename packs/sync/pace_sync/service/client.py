"""The service's client, with requests for sync plans. Needs ``pace-scheduler[client]``."""

from typing import overload

from pace.client.http import Client
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync
from pace_sync.documents.outer_plan import OuterPlan
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.sync_problem import AnySync, PlanOfSync
from pace_sync.documents.weight_sync import WeightSync
from pace_sync.service.documents import SyncPlanRequest, SyncPlanResource


class SyncClient(Client):
    """A connection to a service with this pack."""

    @overload
    def plan_sync(self, sync: WeightSync) -> SyncPlan: ...

    @overload
    def plan_sync(self, sync: Resharding) -> ReshardPlan: ...

    @overload
    def plan_sync(self, sync: DeltaSync) -> DeltaPlan: ...

    @overload
    def plan_sync(self, sync: OuterSync, *, torchft: bool = ...) -> OuterPlan: ...

    def plan_sync(self, sync: AnySync, *, torchft: bool = False) -> PlanOfSync:
        """Let the service plan; return what ``pace_sync.plan_sync``, ``plan_reshard`` and so on would.

        Raises
        ------
        InvalidSync
            If the service refuses the document.
        """
        asked = SyncPlanRequest(sync=sync, torchft=torchft).model_dump(mode="json")
        plan = self._ask("/v1/sync-plans", asked, SyncPlanResource, waits=True).plan
        if plan.problem_sha256 != sync.sha256:
            self._nonsense("a plan for another document")
        return plan
