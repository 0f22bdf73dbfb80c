"""Webhooks: tells one address of tasks that end and of jobs that drift, as Standard Webhooks 1.0.0 says."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import structlog

from pace.client.documents import ReportResource

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

Notice = Literal["task.done", "task.failed", "job.drifted"]

PREFIX = "whsec_"
# From this share on a job is said to have drifted; the web page says so too (``job.js``).
DRIFTED = 0.1

_PAUSES_S = (1.0, 5.0, 30.0, 120.0)
_TIMEOUT_S = 10.0
_MOST_WAITING = 1000
_MOST_SENDING = 8


def key_of(secret: str) -> bytes:
    """Return the key of a secret, ``whsec_`` and base64; raises ValueError for anything else."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError(
            f"expected {PREFIX} and 24 to 64 bytes in base64, as {PREFIX}$(head -c 32 /dev/urandom | base64)"
        )
    return key


class Webhooks:
    """Sends notices to one address. What is not delivered when the process ends is lost, and logged.

    Parameters
    ----------
    url
        Where to send; empty: nowhere.
    secret
        The secret with which notices are signed.
    count
        Called with the outcome of each notice: "sent", "failed" or "dropped".
    """

    def __init__(self, url: str, secret: str, count: Callable[[str], None]) -> None:
        self._url = url
        self._secret = secret
        self._count = count
        self._waiting: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_MOST_SENDING)
        self._client: httpx.AsyncClient | None = None

    def send(self, notice: Notice, subject: str, **data: Any) -> None:
        """Send a notice in the background; call it in the event loop.

        Parameters
        ----------
        subject
            The identifier of what it is about: one that is sent again has the same ``webhook-id``.
        """
        if not self._url:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._count("dropped")
            log.warning("webhook-dropped", notice=notice, waiting=len(self._waiting))
            return
        message = {"type": notice, "timestamp": datetime.now(UTC).isoformat(), "data": data}
        delivery = self._deliver(f"msg_{subject}", notice, json.dumps(message).encode())
        task = asyncio.create_task(delivery)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def tell_of_drift(self, tenant: str, report: ReportResource) -> None:
        """Send a notice if a report's iterations are far from their prediction."""
        share = report.measured_iteration_s / report.predicted_iteration_s - 1.0
        if abs(share) >= DRIFTED:
            self.send(
                "job.drifted",
                report.id,
                tenant=tenant,
                job=report.job,
                fingerprint=report.fingerprint,
                report=report.id,
                predicted_iteration_s=report.predicted_iteration_s,
                measured_iteration_s=report.measured_iteration_s,
            )

    async def _deliver(self, message: str, notice: Notice, body: bytes) -> None:
        error = ""
        try:
            for pause_s in (0.0, *_PAUSES_S):
                await asyncio.sleep(pause_s)
                async with self._turns:
                    error = await self._post(message, body)
                if not error:
                    self._count("sent")
                    return
        except asyncio.CancelledError:
            error = error or "the service stopped"
        self._count("failed")
        log.warning("webhook-not-sent", notice=notice, message=message, error=error)

    async def _post(self, message: str, body: bytes) -> str:
        """Post a notice; return why it did not arrive, or nothing."""
        import httpx

        stamp = str(int(time.time()))
        signed = b".".join([message.encode(), stamp.encode(), body])
        signature = base64.b64encode(hmac.digest(key_of(self._secret), signed, hashlib.sha256)).decode()
        headers = {
            "content-type": "application/json",
            "webhook-id": message,
            "webhook-timestamp": stamp,
            "webhook-signature": f"v1,{signature}",
        }
        if self._client is None:  # once: it reads certificates, for which all requests would wait
            logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs addresses, which may be secret
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_S)
        try:
            # Only the status counts: what follows it may be long or slow, and is not read.
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self._client.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                return "" if answer.is_success else f"answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return str(error) or type(error).__name__

    async def close(self, within_s: float) -> None:
        """Wait for what is being sent, and give up the rest."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=within_s)
        for task in list(self._waiting):
            task.cancel()
        await asyncio.gather(*self._waiting)
        if self._client is not None:
            await self._client.aclose()
