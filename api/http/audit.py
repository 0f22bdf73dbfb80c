"""The audit log: one line for every write, in the service's log under the name "pace.audit"."""

import structlog

from pace.api.access import Principal

_log = structlog.get_logger("pace.audit")


def audit(action: str, principal: Principal, **subject: str) -> None:
    """Note who did what to what; the request's id is added by the log."""
    if principal.subject is not None:
        subject["subject"] = principal.subject
    _log.info(action, tenant=principal.tenant, key=principal.key_id, **subject)


def audit_denial(method: str, path: str, client: str, reason: str) -> None:
    """Note that somebody was not let in."""
    _log.info("denied", method=method, path=path, client=client, reason=reason)
