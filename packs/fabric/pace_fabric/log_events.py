"""Events that the processes of ``pace fabric`` log, as ``pace.runtime.event_log`` does."""

from pace.log_events import LogEvent

FABRIC_EVENTS = {
    "pace.fabric_host": LogEvent("info", "host part version", "A host has registered"),
    "pace.fabric_host_lost": LogEvent("warning", "host part reason", "A host's connection ended"),
    "pace.fabric_host_refused": LogEvent("error", "host reason", "The scheduler refused this host"),
    "pace.fabric_link_lost": LogEvent("debug", "other reason", "A connection to another host broke"),
    "pace.fabric_scheduler_lost": LogEvent(
        "warning", "host reason", "The connection to the scheduler ended; this host tries again"
    ),
    "pace.fabric_failover": LogEvent(
        "warning",
        "server version resubmitted",
        "The replica became the server; `resubmitted` updates are sent again",
    ),
    "pace.fabric_replica_synchronized": LogEvent("info", "version", "The replica has the server's model"),
    "pace.fabric_transfer_failed": LogEvent(
        "info", "transfer reason", "A transfer failed, and is planned again"
    ),
    "pace.fabric_model_failed": LogEvent(
        "info", "host", "The transfer of a model to a host failed, and is planned again"
    ),
    "pace.fabric_model_restored": LogEvent("info", "file version", "The server goes on from its saved model"),
    "pace.fabric_model_not_saved": LogEvent(
        "error", "file reason", "The server could not save its model, and tries again at the next commit"
    ),
    "pace.fabric_commit_refused": LogEvent(
        "error", "key reason", "The server refused a commit that would break a bound"
    ),
    "pace.fabric_message_ignored": LogEvent(
        "warning", "host kind", "A message of an unknown kind was ignored"
    ),
    "pace.fabric_shard_versions_differ": LogEvent(
        "error", "versions", "Servers that share a model have different versions"
    ),
    "pace.fabric_scheduler_failed": LogEvent(
        "error", "reason", "The scheduler failed because of a defect; with traceback"
    ),
    "pace.fabric_daemon_failed": LogEvent(
        "error", "host reason", "A host's daemon failed because of a defect; with traceback"
    ),
    "pace.fabric_group_begins": LogEvent(
        "info", "group members round", "Enough members have joined a group to begin its rounds"
    ),
    "pace.fabric_member_joined": LogEvent(
        "info", "group member round", "A newcomer to a group got its state, and takes part from this round"
    ),
    "pace.fabric_member_missed": LogEvent(
        "warning", "group member round", "A member missed the deadline of a round and is left out"
    ),
    "pace.fabric_round_again": LogEvent(
        "warning", "group round reason", "A group's round failed, and is run again with those that are left"
    ),
    "pace.fabric_model_not_narrow": LogEvent(
        "warning", "version reason", "The model does not fit into 16 bits, and is served in 32"
    ),
    "pace.weights_not_forwarded": LogEvent("warning", "reason", "The next host of a chain cannot be reached"),
    "pace.weights_link_ended": LogEvent("debug", "reason", "A connection of a chain of hosts ended"),
}
