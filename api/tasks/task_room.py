"""Whether there is room for one more task, in the queue and among what its tenant may have."""

from sqlalchemy import Connection, func, select

from pace.api.errors import ContentTooLarge, QueueFull
from pace.api.received import AnyReceivedTask, document_bytes
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import TaskRecord
from pace.api.tasks.state import LIVE
from pace.api.tenants import Tenants

# Kinds whose steps are simulations.
_OF_CELLS = ("what-if", "prediction")


class TaskRoom:
    """The room for tasks of all tenants."""

    def __init__(self, max_queued: int, tenants: Tenants, quota: StorageQuota) -> None:
        self._max_queued = max_queued
        self._tenants = tenants
        self._quota = quota

    def require(self, connection: Connection, tenant: str, received: AnyReceivedTask) -> bool:
        """Refuse one more task where there is no room; return whether it could run at once."""
        mine, queued = TaskRecord.tenant == tenant, TaskRecord.state == "queued"
        of_all, of_tenant, at_work, cells = connection.execute(
            select(
                func.count().filter(queued),
                func.count().filter(queued, mine),
                func.count().filter(~queued, mine),
                func.coalesce(func.sum(TaskRecord.num_total).filter(mine, TaskRecord.kind.in_(_OF_CELLS)), 0),
            )
            .select_from(TaskRecord)
            .where(TaskRecord.state.in_(LIVE))
        ).one()
        limits = self._tenants.limits(tenant)
        if of_tenant >= limits.max_queued:
            raise QueueFull(f"{of_tenant} tasks of yours wait already", retry_after_s=5)
        if of_all >= self._max_queued:
            raise QueueFull(f"{of_all} tasks wait already", retry_after_s=10)
        asked = (received.num_steps or 0) if received.kind in _OF_CELLS else 0
        if asked > limits.max_cells:
            raise ContentTooLarge(f"{asked} simulations; a tenant may have {limits.max_cells} under way")
        if asked and (cells or 0) + asked > limits.max_cells:
            detail = (
                f"{cells} simulations of yours are under way; with {asked} more, more than {limits.max_cells}"
            )
            raise QueueFull(detail, retry_after_s=10)
        self._quota.require(connection, tenant, document_bytes(received))
        return bool(of_all == 0 and at_work < limits.max_running)
