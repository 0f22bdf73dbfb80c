"""What this distribution adds to PACE."""

from pace.packs import Pack

PACK = Pack(
    name="fabric",
    commands={"fabric": "pace_fabric.commands.app:app"},
    questions="pace_fabric.service.fabric_runs:KINDS",
    kernels="pace_fabric.service.transfer_plans:kernels",
    http="pace_fabric.service.http:HTTP",
    log_events="pace_fabric.log_events:FABRIC_EVENTS",
)
