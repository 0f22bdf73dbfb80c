"""The audit log: one line for every write, in the service's log under the name "pace.audit"."""

import structlog

from pace.api.access import Principal

_log = structlog.get_logger("pace.audit")


def audit(action: str, principal: Principal, **subject: str) -> None:
    """Write an audit line: who did what to which resource. The log adds the request's identifier."""
    if principal.subject is not None:
        subject["subject"] = principal.subject
    _log.info(action, tenant=principal.tenant, key=principal.key_id, **subject)


def audit_denial(method: str, path: str, client: str, reason: str) -> None:
    """Write an audit line about a refused caller."""
    _log.info("denied", method=method, path=path, client=client, reason=reason)
