"""Documents of the HTTP interface for sync plans: of weight synchronization and of streaming DiLoCo."""

from datetime import datetime
from typing import Self

from pydantic import model_validator

from pace.client.documents import ResourceId
from pace.documents.base import Document
from pace.documents.profile import Name
from pace.documents.schedule import Sha256
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.documents.sync_problem import PlanOfSync, SyncProblem, sync_kind
from pace_sync.errors import InvalidSync


class SyncPlanRequest(Document):
    """Body of ``POST /v1/sync-plans``.

    Attributes
    ----------
    sync
        A weight-sync, resharding or delta-sync document, or an outer-sync document of streaming DiLoCo.
    torchft
        With an outer-sync document: make a plan that torchft's DiLoCo can follow.
    """

    refused_as = InvalidSync

    sync: SyncProblem
    torchft: bool = False

    @model_validator(mode="after")
    def _for_diloco(self) -> Self:
        if self.torchft and not isinstance(self.sync, OuterSync):
            kind = sync_kind(self.sync)
            raise ValueError(f"torchft is for outer-sync documents, and this is a {kind} document")
        return self


class SyncPlanSummary(Document):
    """A stored sync plan without its content; `id` follows from the document, options and the version."""

    id: ResourceId
    name: Name
    sync_sha256: Sha256
    created_at: datetime


class SyncPlanResource(SyncPlanSummary):
    """A stored sync plan, as ``pace sync plan --json`` or ``pace diloco plan --json`` prints it."""

    plan: PlanOfSync
