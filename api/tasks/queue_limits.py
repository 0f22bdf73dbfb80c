"""Limits on queued tasks and simulations, of all tenants and of each."""

from sqlalchemy import Connection, bindparam, func, literal_column, select

from pace.api.errors import ContentTooLarge, QueueFull
from pace.api.fairness.tenants import Tenants
from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import Question
from pace.api.storage.quota import StorageQuota
from pace.api.storage.records import IS_LIVE, TaskRecord

# Kinds whose steps are simulations.
_OF_CELLS = tuple(kind.name for kind in KINDS.values() if kind.simulates)
_MINE, _QUEUED = TaskRecord.tenant == bindparam("tenant"), TaskRecord.state == literal_column("'queued'")
_CELLS = func.sum(TaskRecord.num_total).filter(_MINE, TaskRecord.kind.in_(_OF_CELLS))
# Built once because every new question executes it.
_COUNTS = (
    select(
        func.count().filter(_QUEUED),
        func.count().filter(_QUEUED, _MINE),
        func.count().filter(~_QUEUED, _MINE),
        func.coalesce(_CELLS, 0),
    )
    .select_from(TaskRecord)
    .where(IS_LIVE)
)


class QueueLimits:
    """Refuses tasks beyond the limits."""

    def __init__(self, max_queued: int, tenants: Tenants, quota: StorageQuota) -> None:
        self._max_queued = max_queued
        self._tenants = tenants
        self._quota = quota

    def require(self, connection: Connection, tenant: str, question: Question) -> bool:
        """Refuse one more task beyond a limit; return whether it could run at once."""
        of_all, of_tenant, at_work, cells = connection.execute(_COUNTS, {"tenant": tenant}).one()
        limits = self._tenants.limits(tenant)
        if of_tenant >= limits.max_queued:
            raise QueueFull(
                f"{of_tenant} of your tasks are waiting, as many as a tenant may have; try again when one is "
                "done",
                retry_after_s=5,
            )
        if of_all >= self._max_queued:
            raise QueueFull(
                f"{of_all} tasks are waiting, as many as the service takes; try again later", retry_after_s=10
            )
        asked = (question.num_steps or 0) if question.kind in _OF_CELLS else 0
        if asked > limits.max_cells:
            raise ContentTooLarge(
                f"the request needs {asked} simulations; a tenant may have at most {limits.max_cells} at once"
            )
        if asked and (cells or 0) + asked > limits.max_cells:
            detail = (
                f"{cells} of your simulations are waiting or running, and the request needs {asked} more; "
                f"at most {limits.max_cells} are allowed: try again when some are done"
            )
            raise QueueFull(detail, retry_after_s=10)
        self._quota.require(connection, tenant, 0 if question.input is None else question.input.stored_bytes)
        return bool(of_all == 0 and at_work < limits.max_running)
