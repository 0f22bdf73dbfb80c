"""Counters for Prometheus: the numbers of each wrapper's ``report()``, read at every scrape.

Needs prometheus-client (``pip install 'pace-scheduler[metrics]'``). A scrape waits for nothing that training
waits for.
"""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

try:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "pace.runtime.metrics needs prometheus-client: pip install 'pace-scheduler[metrics]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from pace.runtime.optimizer.wrapped_optimizer import WrappedOptimizer

__all__ = ["RuntimeCollector"]

_COUNTERS = {
    "pace_runtime_steps": ("Optimizer steps taken", "rounds"),
    "pace_runtime_sent_bytes": ("Bytes of gradients handed to the transport", "sent_bytes"),
    "pace_runtime_sent_segments": ("Segments handed to the transport", "sent_segments"),
    "pace_runtime_waited_seconds": ("Seconds that training waited for communication", "waited_s"),
    "pace_runtime_profiles": ("Profiles that the job recorded of itself", "profiles"),
}
_GAUGES = {
    "pace_runtime_iteration_seconds": ("Median duration of the latest iterations in seconds", "iteration_s"),
    "pace_runtime_predicted_iteration_seconds": (
        "Iteration time in seconds that the schedule predicts",
        "predicted_iteration_s",
    ),
    "pace_runtime_drift_ratio": (
        "Iteration time relative to the first iterations under the same schedule",
        "drift",
    ),
}


class RuntimeCollector(Collector):
    """Shows wrappers to a Prometheus registry: ``REGISTRY.register(RuntimeCollector(model=optimizer))``.

    Metrics have the labels ``optimizer``, the name that the wrapper was given here, and ``rank``. A metric
    without a value yet (a prediction without a schedule, an iteration before the second step) is left out,
    and so is a wrapper that no longer exists.

    Parameters
    ----------
    optimizers
        Wrappers by name; they are not kept alive.
    """

    def __init__(self, **optimizers: "WrappedOptimizer") -> None:
        self._optimizers = {name: weakref.ref(optimizer) for name, optimizer in optimizers.items()}

    def collect(self) -> Iterable[Metric]:
        """Read every wrapper; called by the registry, in any thread."""
        labels = ["optimizer", "rank"]
        counters = {
            field: CounterMetricFamily(name, told, labels=labels) for name, (told, field) in _COUNTERS.items()
        }
        gauges = {
            field: GaugeMetricFamily(name, told, labels=labels) for name, (told, field) in _GAUGES.items()
        }
        trial = GaugeMetricFamily(
            "pace_runtime_trial_seconds",
            "Median iteration time in seconds in the last trial, by mode",
            labels=[*labels, "mode"],
        )
        running = InfoMetricFamily(
            "pace_runtime", "Mode, order, plan and replanning of the job, as labels; always 1", labels=labels
        )
        for name, reference in self._optimizers.items():
            optimizer = reference()
            if optimizer is None:
                continue
            report = optimizer.report(wait=False)
            values = [name, str(optimizer.rank)]
            for field, counter in counters.items():
                counter.add_metric(values, getattr(report, field))
            for field, gauge in gauges.items():
                if (value := getattr(report, field)) is not None:
                    gauge.add_metric(values, value)
            for mode, seconds in report.trial_s.items():
                trial.add_metric([*values, mode], seconds)
            running.add_metric(
                values,
                {
                    "mode": report.mode,
                    "order": report.order,
                    "plan": report.source,
                    "replanning": report.replanning,
                },
            )
        return [*counters.values(), *gauges.values(), trial, running]
