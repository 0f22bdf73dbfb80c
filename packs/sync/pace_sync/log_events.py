"""Events that weight synchronization and DiLoCo log, as ``pace.runtime.event_log`` does."""

from pace.log_events import LogEvent

SYNC_EVENTS = {
    "pace.fabric_state_late": LogEvent(
        "warning", "rounds", "This worker got the group's state too late for a round, and asks again"
    ),
}
