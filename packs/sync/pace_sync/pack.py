"""What this distribution adds to PACE: so far, events of the log."""

from pace.packs import Pack

PACK = Pack(name="sync", log_events="pace_sync.log_events:SYNC_EVENTS")
