"""OpenTelemetry traces (``pace-scheduler[otel]``), off unless its variables turn them on."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from pace.api.settings import telemetry_wanted
from pace.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.sdk.trace import TracerProvider

log = structlog.get_logger(__name__)

_MOST_REMEMBERED = 10_000


class Spans:
    """Spans around tasks, as children of the request that started them; without a provider, nothing."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        self._provider = provider
        self._asked: OrderedDict[str, Any] = OrderedDict()

    @property
    def wanted(self) -> bool:
        """Whether there is a provider."""
        return self._provider is not None

    def remember(self, task_id: str) -> None:
        """Remember the current request as the parent of a task's span."""
        if self._provider is not None:
            from opentelemetry import context

            self._asked.setdefault(task_id, context.get_current())
            if len(self._asked) > _MOST_REMEMBERED:
                self._asked.popitem(last=False)

    @contextmanager
    def of_task(self, task_id: str, name: str, **attributes: str | int) -> Iterator[None]:
        """Open a span of a task; errors that leave it are recorded."""
        if self._provider is None:
            yield
            return
        tracer = self._provider.get_tracer("pace.api", __version__)
        asked = self._asked.pop(task_id, None)
        about = {"pace.task.id": task_id, **attributes}
        with tracer.start_as_current_span(name, context=asked, attributes=about):
            yield

    def close(self) -> None:
        """Send the remaining spans."""
        if self._provider is not None:
            self._provider.shutdown()


def trace(app: "FastAPI") -> Spans:
    """Trace an application's requests and tasks if the environment asks for it."""
    if not telemetry_wanted():
        return Spans()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        reason = f"OTEL_ variables are set, but {error}: pip install 'pace-scheduler[otel]'"
        log.warning("tracing-disabled", reason=reason)
        return Spans()
    ours = Resource({"service.name": "pace", "service.version": __version__})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    FastAPIInstrumentor.instrument_app(
        app,
        tracer_provider=provider,
        excluded_urls="/healthz,/readyz,/metrics",
        exclude_spans=["receive", "send"],
    )
    return Spans(provider)
