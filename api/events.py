"""Every event that the service logs. A test holds the calls of the loggers to these declarations."""

from pace.api.questions.all_kinds import KINDS
from pace.log_events import LogEvent

EVENTS = {
    "listening": LogEvent("info", "url database", "The service accepts requests"),
    "not-started": LogEvent("error", "reason", "The service cannot work with this database, and ends"),
    "forced-exit": LogEvent("error", "reason", "A thread did not end when the service stopped"),
    "unknown-setting": LogEvent("warning", "name", "A variable named `PACE_...` is no setting"),
    "auth-disabled": LogEvent("warning", "reason", "The service listens on loopback only, without API keys"),
    "tracing-disabled": LogEvent(
        "warning", "reason", "OpenTelemetry's variables are set, but `pace-scheduler[otel]` is missing"
    ),
    "request": LogEvent(
        "info",
        "method path status seconds client",
        "A request was answered; successful reads are only counted in the metrics",
    ),
    "slow-reader-ended": LogEvent(
        "info", "client", "A connection was closed, because its client did not read its answer"
    ),
    "request-failed": LogEvent(
        "error", "method path error problem", "A request failed because of a defect or a lack of storage"
    ),
    **{
        kind.done_event: LogEvent(
            "info", "task tenant solve_s", f"A {kind.noun} is ready, after `solve_s` in a worker"
        )
        for kind in KINDS.values()
    },
    "question-failed": LogEvent("warning", "task tenant problem", "A task ended without a result"),
    "task-failed": LogEvent(
        "error", "task", "A task failed because of a defect of the service; with traceback"
    ),
    "result-not-stored": LogEvent(
        "warning", "error retry_in_s", "A result waits in memory until the database answers"
    ),
    "progress-not-stored": LogEvent("warning", "task error", "The database did not store a task's progress"),
    "claim-failed": LogEvent("warning", "error", "The database did not answer when tasks were to be started"),
    "renew-failed": LogEvent("warning", "error", "The database did not answer when leases were renewed"),
    "release-failed": LogEvent(
        "warning", "error", "The database did not answer when a stopping service gave tasks back"
    ),
    "watch-ended": LogEvent("warning", "task error", "A request stopped waiting for its task"),
    "events-ended": LogEvent("warning", "task error", "The stream of a task's events ended early"),
    "key-use-not-stored": LogEvent("warning", "key error", "The time of a key's last use was not stored"),
    "worker-died": LogEvent(
        "warning", "task retried problem", "A worker process died; `retried` says if the task is tried again"
    ),
    "worker-restarted": LogEvent("error", "reason", "A worker process died and was replaced"),
    "worker-not-started": LogEvent("warning", "purpose error", "A worker process did not start"),
    "worker-pending": LogEvent(
        "info",
        "purpose",
        "A task waits for a worker process to load its code, or to compile it for the first time",
    ),
    "worker-not-prepared": LogEvent(
        "error", "", "A worker process could not load its code before its first task; with traceback"
    ),
    "worker-failed": LogEvent("error", "", "A worker's task failed because of a defect; with traceback"),
    "dask-connected": LogEvent("info", "scheduler", "The Dask cluster answers"),
    "dask-unreachable": LogEvent("warning", "scheduler error", "The Dask cluster does not answer"),
    "dask-bridge-restarted": LogEvent(
        "error", "reason", "The process that talks to the Dask cluster died and was replaced"
    ),
    "database-ready": LogEvent("info", "", "The database answers again, after `database-not-ready`"),
    "database-not-ready": LogEvent(
        "warning", "error retry_in_s", "The database does not answer, and is tried again"
    ),
    "pruned": LogEvent("info", "results", "Hourly clean-up of the database: number of deleted results"),
    "prune-failed": LogEvent("error", "", "Hourly clean-up of the database failed; with traceback"),
    "objects-not-ready": LogEvent("warning", "error", "Object storage does not answer"),
    "objects-of-another-database": LogEvent(
        "error", "place own_id other_id", "Two databases use one `PACE_OBJECTS` prefix; no object is deleted"
    ),
    "swept": LogEvent("info", "objects", "Hourly clean-up of object storage: number of deleted objects"),
    "sweep-failed": LogEvent("error", "", "Hourly clean-up of object storage failed; with traceback"),
    "webhook-not-sent": LogEvent(
        "warning",
        "notice message error",
        "All tries to send a notice failed, or the service stopped",
    ),
    "webhook-dropped": LogEvent(
        "warning",
        "notice waiting",
        "A notice was dropped, because too many others wait to be sent",
    ),
    "issuer-unavailable": LogEvent("warning", "issuer error", "The OpenID Connect issuer does not answer"),
    "issuer-key-not-valid": LogEvent(
        "warning", "issuer key error", "The OpenID Connect issuer has a key that cannot be used"
    ),
}
