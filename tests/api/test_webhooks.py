"""Webhooks: a real receiver is told of ended tasks and of drift, signed, and again if it refuses."""

import asyncio
import base64
import hashlib
import hmac
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pace.api.webhooks import Webhooks
from tests.api.process import ServiceProcess, serve_in_vain
from tests.api.profiles import layered_profile
from tests.api.raw_server import Answer, answering, drip, drip_headers

KEY = bytes(range(24))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
WITHIN_S = 60.0


class Receiver:
    """An HTTP server that keeps what is posted, and answers 503 to the first posts.

    Parameters
    ----------
    refusals
        How many posts it refuses.
    """

    def __init__(self, refusals: int = 0) -> None:
        self.posts: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        left = [refusals]
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                posts.put(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(503 if left[0] > 0 else 204)
                left[0] -= 1
                self.end_headers()

            def log_message(self, *_said: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hooks"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next post, whose signature must be right: its identifier, and the notice."""
        headers, body = self.posts.get(timeout=WITHIN_S)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        notice: dict[str, Any] = json.loads(body)
        return headers["webhook-id"], notice

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(folder: Path, refusals: int = 0) -> Iterator[tuple[Receiver, ServiceProcess]]:
    """Start a receiver, and a service that posts to it."""
    receiver = Receiver(refusals)
    try:
        with ServiceProcess(folder, webhook_url=receiver.url, webhook_secret=SECRET) as service:
            yield receiver, service
    finally:
        receiver.close()


def test_ended_tasks_and_drift_are_told(tmp_path: Path) -> None:
    """One notice for each, also after the receiver refused the first; none of jobs near their prediction."""
    with serving(tmp_path, refusals=1) as (receiver, service), service.caller() as caller:
        stored = caller.post_schedule(layered_profile(2)).json()
        first, notice = receiver.next()
        again, repeated = receiver.next()
        assert (again, repeated) == (first, notice)
        assert notice["type"] == "task.done"
        assert notice["data"]["kind"] == "schedule"
        assert notice["data"]["tenant"] == "default"
        assert service.http.get(f"/v1/tasks/{notice['data']['task']}").json()["state"] == "done"

        refused = caller.post_schedule(layered_profile(2), options={"solver": "none"})
        assert refused.status_code == 422  # the caller has the answer: no task has begun

        report = {
            "job": "vision",
            "fingerprint": stored["fingerprint"],
            "profile_sha256": stored["profile_sha256"],
            "predicted_iteration_s": 0.1,
            "num_iterations": 50,
        }
        for measured_s in (0.105, 0.12, 0.08):
            sent = {**report, "measured_iteration_s": measured_s}
            for _ in range(2):  # as a job that did not get the first answer
                told = service.http.post(
                    "/v1/reports", json=sent, headers={"Idempotency-Key": str(measured_s)}
                )
                assert told.status_code == 201
        # Notices are sent at the same time, so they arrive in any order.
        notices = sorted((receiver.next() for _ in range(4)), key=lambda sent: sent[0])
        assert [first for first, _ in notices[::2]] == [again for again, _ in notices[1::2]]
        assert {notice["type"] for _, notice in notices} == {"job.drifted"}
        assert {notice["data"]["job"] for _, notice in notices} == {"vision"}
        assert {notice["data"]["measured_iteration_s"] for _, notice in notices} == {0.12, 0.08}
        assert receiver.posts.empty()
        assert "/hooks" not in service.log_path.read_text()  # an address may be a secret
        metrics = service.http.get("/metrics").text
        assert 'pace_webhooks_total{outcome="sent"} 5.0' in metrics


def test_what_nobody_takes_is_logged(tmp_path: Path) -> None:
    """Requests are answered as ever, and the service says at its end what it could not send."""
    receiver = Receiver()
    receiver.close()
    with ServiceProcess(tmp_path, webhook_url=receiver.url, webhook_secret=SECRET) as service:
        with service.caller() as caller:
            assert caller.post_schedule(layered_profile(2)).status_code == 201
        service.stop()
        (lost,) = service.events("webhook-not-sent", 1)
    assert lost["notice"] == "task.done"
    assert lost["error"]


@pytest.mark.parametrize(("answer", "outcome"), [(drip, "sent"), (drip_headers, "failed")])
def test_an_answer_that_never_ends_holds_up_no_notice(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, outcome: str
) -> None:
    """The status counts, and a receiver without one has refused; what follows it is not read."""
    monkeypatch.setattr("pace.api.webhooks._TIMEOUT_S", 0.3)
    monkeypatch.setattr("pace.api.webhooks._PAUSES_S", (0.01,))
    outcomes: list[str] = []

    async def send(url: str) -> None:
        webhooks = Webhooks(url, SECRET, outcomes.append)
        for number in range(20):  # more than are sent at a time
            webhooks.send("task.done", str(number))
        await webhooks.close(within_s=WITHIN_S)

    with answering(answer) as url:
        asyncio.run(send(url))
    assert outcomes == [outcome] * 20


def test_an_address_without_a_secret_is_refused(tmp_path: Path) -> None:
    """And one that cannot be, in a line that shows neither."""
    code, said = serve_in_vain(tmp_path, webhook_url="http://127.0.0.1:9/secret-path")
    assert code == 2
    assert "PACE_WEBHOOK_SECRET: expected whsec_ and 24 to 64 bytes in base64" in said
    assert "secret-path" not in said
    code, said = serve_in_vain(tmp_path, webhook_url="ftp://x", webhook_secret="whsec_c2hvcnQ=")
    assert code == 2
    assert [line.split(": ")[1] for line in said.splitlines()] == ["PACE_WEBHOOK_URL", "PACE_WEBHOOK_SECRET"]
    for url in ("http://host:99999/", "http://[::1", "http://a b/"):
        code, said = serve_in_vain(tmp_path, webhook_url=url, webhook_secret=SECRET)
        assert (code, said.count("\n")) == (2, 1), said
        assert said.startswith("pace serve: PACE_WEBHOOK_URL: ")
    code, said = serve_in_vain(tmp_path, webhook_secret="whsec_not base64")
    assert (code, "PACE_WEBHOOK_SECRET: expected whsec_ and" in said) == (2, True), said
