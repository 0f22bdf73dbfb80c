"""Deletes what nobody has asked for in a long time."""

from datetime import datetime

from sqlalchemy import delete, exists

from pace.api.database import Database
from pace.api.records import ProfileRecord, ReportRecord, ScheduleRecord, SolutionRecord, TaskRecord


def prune(database: Database, before: datetime) -> int:
    """Delete what is older, of all tenants; return how many schedules went.

    Schedules count from when they were last asked for by POST, reports and finished tasks from their
    end. A profile goes with the last schedule and task that refer to it, unless it is itself newer.
    """
    live = TaskRecord.state.in_(("queued", "running"))
    of_schedule = (TaskRecord.tenant == ScheduleRecord.tenant) & (TaskRecord.key == ScheduleRecord.key)
    of_solution = (ScheduleRecord.tenant == SolutionRecord.tenant) & (
        ScheduleRecord.key == SolutionRecord.key
    )
    with database.write() as connection:
        pruned = connection.execute(
            delete(ScheduleRecord).where(ScheduleRecord.asked_at < before, ~exists().where(of_schedule, live))
        )
        connection.execute(delete(SolutionRecord).where(~exists().where(of_solution)))
        connection.execute(delete(TaskRecord).where(~live, TaskRecord.finished_at < before))
        connection.execute(delete(ReportRecord).where(ReportRecord.created_at < before))
        unused = [
            ~exists().where(
                record.tenant == ProfileRecord.tenant, record.profile_sha256 == ProfileRecord.sha256
            )
            for record in (ScheduleRecord, TaskRecord)
        ]
        connection.execute(delete(ProfileRecord).where(ProfileRecord.created_at < before, *unused))
    return pruned.rowcount
