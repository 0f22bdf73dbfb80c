"""Prometheus metrics of the service."""

import asyncio
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pace.api.questions.all_kinds import KINDS
from pace.api.questions.kind import QuestionKind
from pace.version import __version__

_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES = (10, 100, 1_000, 10_000, 100_000)


class Metrics:
    """The metrics of one service, in their own registry.

    Parameters
    ----------
    num_tenants
        Number of tenants with their own metrics; the others are counted together.
    """

    def __init__(self, num_tenants: int = 0) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        # Apart, because not everyone may see the tenants' names.
        self._of_tenants = CollectorRegistry()
        self.tenants = TenantMetrics(self._of_tenants, num_tenants)
        build = Gauge(
            "pace_build_info",
            "Version of PACE and of Python, as labels; always 1",
            ["version", "python"],
            registry=self.registry,
        )
        build.labels(__version__, platform.python_version()).set(1)
        self._waits = Histogram(
            "pace_queue_wait_seconds",
            "Seconds from the acceptance of a task to its start, by kind",
            ["kind"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._turns = Histogram(
            "pace_turn_wait_seconds",
            "Seconds that work waited for a process, the database or the event loop, by kind of work",
            ["work"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        database = Histogram(
            "pace_database_seconds",
            "Seconds of one database call, from its first statement to its commit",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self.observe_database = database.observe
        objects = Histogram(
            "pace_objects_seconds",
            "Seconds of one call of object storage",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self.observe_objects = objects.observe
        self._requests = Histogram(
            "pace_request_seconds",
            "Seconds to answer a request, by method, route and status; status 499: the client went away",
            ["method", "route", "status"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._answers = {
            kind.name: Histogram(
                f"pace_{kind.label}_seconds",
                f"Seconds of one {kind.noun} in a worker process"
                + ("" if kind.long else ", by the number of gradients of the profile (upper bound)"),
                [] if kind.long else ["gradients"],
                buckets=_LATENCIES_S,
                registry=self.registry,
            )
            for kind in KINDS.values()
        }
        self._failures = Counter(
            "pace_solve_failures",
            "Tasks that ended without a result, by problem",
            ["problem"],
            registry=self.registry,
        )
        self._cache = Counter(
            "pace_answer_cache",
            "Answers, by result: read from memory (hit) or from storage (miss)",
            ["result"],
            registry=self.registry,
        )
        self.cache_hits = self._cache.labels("hit")
        self.cache_misses = self._cache.labels("miss")
        self.slow_readers = Counter(
            "pace_slow_readers",
            "Connections closed because the client did not read its answer",
            registry=self.registry,
        )
        self._webhooks = Counter(
            "pace_webhooks",
            "Notices to `PACE_WEBHOOK_URL`, by outcome: sent, failed or dropped",
            ["outcome"],
            registry=self.registry,
        )
        self._lag = Gauge(
            "pace_event_loop_lag_max_seconds",
            "Longest time in seconds that the event loop was blocked since the last scrape",
            registry=self.registry,
        )
        self._longest_lag_s = 0.0
        self._children: dict[tuple[str, str, int], Histogram] = {}

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        labels = (method, route, status)
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._requests.labels(method, route, str(status))
        child.observe(seconds)

    def observe_wait(self, kind: str, seconds: float) -> None:
        """Count a task that started after a wait."""
        self._waits.labels(kind).observe(seconds)

    def turn_observer(self, work: str) -> Callable[[float], None]:
        """Return a function that records how long work of a name waited."""
        observe: Callable[[float], None] = self._turns.labels(work).observe
        return observe

    def observe_answer(self, kind: QuestionKind, num_gradients: int, seconds: float) -> None:
        """Count an answer; kinds of long answers have no label for the profile's size."""
        histogram = self._answers[kind.name]
        if not kind.long:
            size = next((str(size) for size in _SIZES if num_gradients <= size), "more")
            histogram = histogram.labels(size)
        histogram.observe(seconds)

    def count_failure(self, problem_type: str) -> None:
        """Count a task that ended without a result."""
        self._failures.labels(problem_type.rpartition(":")[2]).inc()

    def count_webhook(self, outcome: str) -> None:
        """Count a notice that was sent, failed or dropped."""
        self._webhooks.labels(outcome).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a value that is read at every scrape; NaN while it cannot be read."""

        def read_safely() -> float:
            try:
                return read()
            except Exception:
                # Metrics matter most when something else fails.
                return math.nan

        Gauge(name, description, registry=self.registry).set_function(read_safely)

    def family(
        self,
        name: str,
        description: str,
        label: str,
        read: Callable[[], Mapping[str, float]],
        *,
        counts: bool = False,
    ) -> None:
        """Add values that are read at every scrape, by a label; `counts` if they never decrease."""
        self.registry.register(_Family(name, description, label, read, counts))

    async def watch_event_loop(self, every_s: float = 0.02) -> None:
        """Measure the delay of the event loop until cancelled."""
        while True:
            due = time.perf_counter() + every_s
            await asyncio.sleep(every_s)
            self._longest_lag_s = max(self._longest_lag_s, time.perf_counter() - due)

    def render(self, *, tenants: bool) -> bytes:
        """Return everything in Prometheus' text format, metrics by tenant only if asked for."""
        self._lag.set(self._longest_lag_s)
        self._longest_lag_s = 0.0
        return generate_latest(self.registry) + (generate_latest(self._of_tenants) if tenants else b"")


class TenantMetrics:
    """Metrics by tenant, off by default; shown to those who may see tenants' names.

    Parameters
    ----------
    num_tenants
        Tenants with their own label, in the order of their first request; others share "other". 0: no
        metrics.
    """

    def __init__(self, registry: CollectorRegistry, num_tenants: int) -> None:
        self._num_tenants = num_tenants
        self._named: set[str] = set()
        if not num_tenants:
            return
        self._requests = Counter(
            "pace_tenant_requests", "Admitted requests, by tenant", ["tenant"], registry=registry
        )
        self._work = Counter(
            "pace_tenant_work_seconds",
            "Seconds that workers spent, by tenant and kind",
            ["tenant", "kind"],
            registry=registry,
        )
        self._bodies = Counter(
            "pace_tenant_body_bytes", "Bytes of request bodies, by tenant", ["tenant"], registry=registry
        )
        self._tasks = Gauge(
            "pace_tenant_tasks",
            "Tasks, by tenant and state: queued or running",
            ["tenant", "state"],
            registry=registry,
        )

    @property
    def wanted(self) -> bool:
        """Whether there are metrics by tenant."""
        return self._num_tenants > 0

    def count_request(self, tenant: str) -> None:
        """Count an admitted request."""
        if self.wanted:
            self._requests.labels(self._label(tenant)).inc()

    def count_work(self, tenant: str, kind: str, seconds: float) -> None:
        """Count the time that a worker was busy for a tenant."""
        if self.wanted:
            self._work.labels(self._label(tenant), kind).inc(seconds)

    def count_body(self, tenant: str, size_bytes: int) -> None:
        """Count a received body."""
        if self.wanted:
            self._bodies.labels(self._label(tenant)).inc(size_bytes)

    def set_tasks(self, live: Mapping[tuple[str, str], int]) -> None:
        """Set the number of tasks by tenant and state."""
        if self.wanted:
            self._tasks.clear()
            for (tenant, state), count in live.items():
                self._tasks.labels(self._label(tenant), state).inc(count)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named:
            if len(self._named) >= self._num_tenants:
                return "other"
            self._named.add(tenant)
        return tenant


class _Family(Collector):
    def __init__(
        self,
        name: str,
        description: str,
        label: str,
        read: Callable[[], Mapping[str, float]],
        counts: bool,
    ) -> None:
        self._name = name
        self._description = description
        self._label = label
        self._read = read
        self._kind = CounterMetricFamily if counts else GaugeMetricFamily

    def describe(self) -> Iterator[Metric]:
        yield self._kind(self._name, self._description, labels=[self._label])

    def collect(self) -> Iterator[Metric]:
        family = self._kind(self._name, self._description, labels=[self._label])
        for value, number in self._read().items():
            family.add_metric([value], number)
        yield family
