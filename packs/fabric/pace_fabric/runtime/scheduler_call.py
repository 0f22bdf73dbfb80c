"""A host's connection to the scheduler: made again whenever it ends, by a thread that does nothing else.

``ask_status`` is one call for people: what the scheduler does.
"""

import json
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pace.errors import CommunicationFailed
from pace.runtime.event_log import log
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, connect
from pace_fabric.runtime.messages import Message, StatusAnswer, StatusCall

_RETRY_S = 0.2
# Other hosts are asked once. A host that does not answer in this time is lost.
CONNECT_S = 5.0


class SchedulerCall:
    """Calling once started; what happens is handled on the daemon's thread.

    Parameters
    ----------
    host
        Name of the daemon's host, for messages to people.
    dial
        Connects to the scheduler.
    post
        Has something done on the daemon's thread.
    register
        Returns what the scheduler is told first.
    on_registration
        Called after that.
    obey
        Called with every order.
    on_absence
        Called, again and again, once the scheduler has been gone for `patience_s`, with the reason.
    """

    def __init__(
        self,
        host: str,
        dial: Callable[[], FabricLink],
        post: Callable[[Callable[[], None]], None],
        *,
        register: Callable[[], Message],
        on_registration: Callable[[], None],
        obey: Callable[[Message], None],
        on_absence: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self._host, self._dial, self._post = host, dial, post
        self._registration, self._on_registration = register, on_registration
        self._obey, self._on_absence, self._patience_s = obey, on_absence, patience_s
        self._link: FabricLink | None = None
        self._lost_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace_fabric.call", daemon=True)

    def start(self) -> None:
        """Begin to call."""
        self._thread.start()

    def tell(self, message: Message) -> None:
        """Send a message if the scheduler is connected; a host that registers sends everything again."""
        if self._link is not None:
            self._link.send(message)

    def stop(self) -> None:
        """Do not call again."""
        self._closed.set()

    def close(self) -> None:
        """Wait for the thread, and end the connection."""
        self.stop()
        self._thread.join(2 * CONNECT_S)
        if self._link is not None:
            self._link.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                link = self._dial()
            except CommunicationFailed as error:
                self._post(partial(self._miss, str(error)))
                self._closed.wait(_RETRY_S)
                continue
            ended = self._follow(link)
            while not ended.wait(0.2) and not self._closed.is_set():
                pass
            if self._closed.is_set():
                link.close()
                return
            self._closed.wait(_RETRY_S)

    def _follow(self, link: FabricLink) -> threading.Event:
        ended = threading.Event()

        def end(link: FabricLink, reason: str) -> None:
            self._post(lambda: self._lose(link, reason))
            ended.set()

        link.start(lambda _link, message: self._post(lambda: self._obey(message)), end)
        self._post(lambda: self._register(link))
        return ended

    # On the daemon's thread.

    def _register(self, link: FabricLink) -> None:
        self._link = link
        link.send(self._registration())
        self._on_registration()

    def _lose(self, link: FabricLink, reason: str) -> None:
        if self._link is link:
            self._link = None
            self._lost_at = time.monotonic()
            log.warning("pace.fabric_scheduler_lost", host=self._host, reason=reason)
        link.close()

    def _miss(self, reason: str) -> None:
        if time.monotonic() - self._lost_at >= self._patience_s:
            self._on_absence(reason)


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
