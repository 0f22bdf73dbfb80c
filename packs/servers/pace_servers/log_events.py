"""Events that training with parameter servers logs, as ``pace.runtime.event_log`` does."""

from pace.log_events import LogEvent

SERVER_EVENTS = {
    "pace.server_awaited": LogEvent(
        "warning",
        "server reason within_s",
        "A server does not answer yet; see whether it runs. The rank keeps trying for `within_s` seconds",
    ),
    "pace.server_links_changed": LogEvent(
        "warning",
        "lost back left",
        "Servers were lost or came back; training goes on with those in `left`, and ends if there are none",
    ),
    "pace.server_job_failed": LogEvent(
        "info",
        "job reason",
        "A server ended a job after an error, for example a lost rank; the server goes on",
    ),
}
