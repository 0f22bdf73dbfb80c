"""Which call of the transport carries a group, and what messages call it."""

from collections.abc import Callable
from typing import Any

from pace.runtime.engine.plan import GroupExchange, PlannedGroup
from pace.runtime.transports.transport import Transport


def call_for(transport: Transport, exchange: GroupExchange | None) -> Callable[..., Any]:
    """Return what starts an exchange of a tensor, or of matrices by rows."""
    if exchange == "reduce-scatter":
        return transport.reduce_scatter
    return transport.all_gather if exchange == "all-gather" else transport.allreduce


def word_for(exchange: GroupExchange | None) -> str:
    """Name an exchange for people."""
    return exchange if exchange in ("reduce-scatter", "all-gather") else "all-reduce"


def described(number: int, group: PlannedGroup) -> str:
    """Name a group for people: its number and its first gradients."""
    names = group.gradients
    return f"group {number} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})"
