"""What the service measures about itself, for Prometheus."""

import asyncio
import math
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES = (10, 100, 1_000, 10_000, 100_000)


class Metrics:
    """The service's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "pace_request_seconds",
            "Time to answer",
            ["method", "route", "status"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._solves = Histogram(
            "pace_solve_seconds",
            "Time of a solve in its worker, by the profile's number of gradients (upper bound)",
            ["gradients"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._what_ifs = Histogram(
            "pace_what_if_seconds",
            "Time of a what-if in its worker",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._predictions = Histogram(
            "pace_prediction_seconds",
            "Time of a prediction in its worker",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._fabric_runs = Histogram(
            "pace_fabric_run_seconds",
            "Time of simulated fabric runs in their worker",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._failures = Counter(
            "pace_solve_failures",
            "Solves and what-ifs without a result, by problem",
            ["problem"],
            registry=self.registry,
        )
        self._cache = Counter(
            "pace_answer_cache",
            "Answers from memory (hit) or storage (miss)",
            ["result"],
            registry=self.registry,
        )
        self.cache_hits = self._cache.labels("hit")
        self.cache_misses = self._cache.labels("miss")
        self._lag = Gauge(
            "pace_event_loop_lag_max_seconds",
            "Longest time that the event loop was blocked since the last scrape",
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

    def observe_what_if(self, num_gradients: int, seconds: float) -> None:  # noqa: ARG002  # as for a solve
        """Count a what-if; its time follows from its grid, not from the profile's size."""
        self._what_ifs.observe(seconds)

    def observe_prediction(self, num_gradients: int, seconds: float) -> None:  # noqa: ARG002  # as for a solve
        """Count a prediction."""
        self._predictions.observe(seconds)

    def observe_fabric_run(self, num_gradients: int, seconds: float) -> None:  # noqa: ARG002  # as for a solve
        """Count simulated fabric runs."""
        self._fabric_runs.observe(seconds)

    def observe_solve(self, num_gradients: int, seconds: float) -> None:
        """Count a solve of so many gradients."""
        size = next((str(size) for size in _SIZES if num_gradients <= size), "more")
        self._solves.labels(size).observe(seconds)

    def count_failure(self, problem_type: str) -> None:
        """Count a solve or what-if that gave no result."""
        self._failures.labels(problem_type.rpartition(":")[2]).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a value that is read at every scrape; NaN while it cannot be read."""

        def read_safely() -> float:
            try:
                return read()
            except Exception:
                # A scrape must work above all when something else does not.
                return math.nan

        Gauge(name, description, registry=self.registry).set_function(read_safely)

    async def watch_event_loop(self, every_s: float = 0.02) -> None:
        """Measure, for ever, how late the event loop gets to what is due."""
        while True:
            due = time.perf_counter() + every_s
            await asyncio.sleep(every_s)
            self._longest_lag_s = max(self._longest_lag_s, time.perf_counter() - due)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        self._lag.set(self._longest_lag_s)
        self._longest_lag_s = 0.0
        return generate_latest(self.registry)
