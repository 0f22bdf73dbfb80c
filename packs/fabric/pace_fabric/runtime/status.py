"""Asking a scheduler what it does."""

import json
import ssl
import threading
from typing import Any

from pace.errors import CommunicationFailed
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, connect
from pace_fabric.runtime.messages.any_message import Message
from pace_fabric.runtime.messages.hosts import StatusAnswer, StatusCall


def ask_status(
    address: ServerAddress,
    *,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    timeout_s: float = 60.0,
) -> dict[str, Any]:
    """Return a scheduler's status.

    Raises
    ------
    CommunicationFailed
        When it does not answer.
    """
    answered = threading.Event()
    found: list[str] = []

    def hear(_link: FabricLink, message: Message) -> None:
        if isinstance(message, StatusAnswer):
            found.append(message.document)
            answered.set()

    link = connect(address, token=token, silence_s=timeout_s, within_s=timeout_s, ssl_context=ssl_context)
    link.start(hear, lambda _link, _reason: answered.set())
    link.send(StatusCall())
    answered.wait(timeout_s)
    link.close()
    if not found:
        raise CommunicationFailed(f"{address.name} at {address.host}:{address.port} gave no status")
    status: dict[str, Any] = json.loads(found[0])
    return status
