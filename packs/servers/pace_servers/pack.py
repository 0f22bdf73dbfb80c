"""What this distribution adds to PACE."""

from pace.packs import Pack

PACK = Pack(
    name="servers",
    commands={
        "": "pace_servers.commands.predict:app",
        "import": "pace_servers.commands.imports:app",
        "servers": "pace_servers.commands.processes:app",
    },
    kinds="pace_servers.kind:KINDS",
    policies="pace_servers.simulation.policies:POLICIES",
    questions="pace_servers.service.predictions:KINDS",
    kernels="pace_servers.planning.warm_up:kernels",
    http="pace_servers.service.http:HTTP",
    log_events="pace_servers.log_events:SERVER_EVENTS",
    communications="pace_servers.runtime.options:COMMUNICATIONS",
)
