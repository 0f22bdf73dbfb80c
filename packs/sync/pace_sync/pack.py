"""What this distribution adds to PACE."""

from pace.packs import Pack

PACK = Pack(
    name="sync",
    commands={"sync": "pace_sync.commands.app:app", "diloco": "pace_sync.commands.outer:app"},
    questions="pace_sync.service.sync_plans:KINDS",
    http="pace_sync.service.http:HTTP",
    log_events="pace_sync.log_events:SYNC_EVENTS",
)
