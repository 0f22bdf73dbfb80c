"""Documents of the HTTP interface for plans of weight synchronization."""

from datetime import datetime

from pace.client.documents import ResourceId
from pace.documents.base import Document
from pace.documents.profile import Name
from pace.documents.schedule import Sha256
from pace.documents.sync.sync_plan import SyncPlan
from pace.documents.sync.weight_sync import WeightSync


class SyncPlanRequest(Document):
    """Body of ``POST /v1/sync-plans``: tensors, links, and the receivers' own work."""

    sync: WeightSync


class SyncPlanSummary(Document):
    """A stored sync plan without its content; `id` follows from the weight-sync document and the version."""

    id: ResourceId
    name: Name
    sync_sha256: Sha256
    created_at: datetime


class SyncPlanResource(SyncPlanSummary):
    """A stored sync plan, as ``pace sync plan --json`` prints it."""

    plan: SyncPlan
