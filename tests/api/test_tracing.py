"""Traces, off unless OpenTelemetry's variables ask for them: received by a real OTLP/HTTP receiver."""

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pace.api.settings import telemetry_wanted
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Receiver(ThreadingHTTPServer):
    """Keeps what exporters send."""

    def __init__(self) -> None:
        self.received: list[ResourceSpans] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.received += ExportTraceServiceRequest.FromString(body).resource_spans
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def spans(self) -> dict[str, Span]:
        """Return the spans so far, by name."""
        scopes = [scope for resource in list(self.received) for scope in resource.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Start a receiver on a port of its own."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_requests_and_solves_are_traced(receiver: Receiver, tmp_path: Path) -> None:
    """The solve is part of its request's trace, which is the caller's; health checks leave none."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_SERVICE_NAME": "the-scheduler",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with ServiceProcess(tmp_path, environment=environment) as service:
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        request = {"profile": layered_profile(5)}
        created = service.http.post("/v1/schedules", json=request, headers=headers).raise_for_status()
        service.http.get(created.headers["location"]).raise_for_status()
        service.http.get("/healthz").raise_for_status()
        deadline = time.monotonic() + 200
        while len(receiver.spans()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    spans = receiver.spans()
    assert set(spans) == {"POST /v1/schedules", "solve", "GET /v1/schedules/{question_id}"}
    assert spans["solve"].trace_id.hex() == spans["POST /v1/schedules"].trace_id.hex() == trace_id
    assert spans["solve"].parent_span_id == spans["POST /v1/schedules"].span_id
    attributes = {attribute.key: attribute.value for attribute in spans["solve"].attributes}
    assert attributes["pace.profile.gradients"].int_value == 5
    resource = {attribute.key: attribute.value for attribute in receiver.received[0].resource.attributes}
    assert resource["service.name"].string_value == "the-scheduler"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_sent_only_where_asked(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    """The standard variables decide, and nothing else."""
    for name in ("ENDPOINT", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert telemetry_wanted() is wanted
