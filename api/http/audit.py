"""The audit log: one line for every write, in the service's log under the name "pace.audit"."""

import structlog

from pace.api.access import Principal

_log = structlog.get_logger("pace.audit")


def audit(action: str, principal: Principal, **subject: str) -> None:
    """Note who did what to what; the request's id is added by the log."""
    _log.info(action, tenant=principal.tenant, key=principal.key_id, **subject)
