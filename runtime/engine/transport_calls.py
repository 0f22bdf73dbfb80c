"""The call of the transport that sends a group, and the group's name in messages."""

from collections.abc import Callable
from typing import Any

from pace.runtime.engine.plan import GroupExchange, PlannedGroup
from pace.runtime.transports.transport import Transport


def call_for(transport: Transport, exchange: GroupExchange | None) -> Callable[..., Any]:
    """Return the transport's function that starts this exchange."""
    if exchange == "reduce-scatter":
        return transport.reduce_scatter
    return transport.all_gather if exchange == "all-gather" else transport.allreduce


def word_for(exchange: GroupExchange | None) -> str:
    """Return an exchange's name for messages."""
    return exchange if exchange in ("reduce-scatter", "all-gather") else "all-reduce"


def described(number: int, group: PlannedGroup) -> str:
    """Return a group's name for messages: its number and its first gradients."""
    names = group.gradients
    return f"group {number} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})"
