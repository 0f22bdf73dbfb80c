"""Training with parameter servers: throughput at other scales, predicted from one worker's recorded steps.

What is exported here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from pace.lazy_names import loads_names

if TYPE_CHECKING:
    from pace_servers.documents.fleet import Fleet
    from pace_servers.documents.prediction import PredictionOptions, ThroughputPrediction
    from pace_servers.tf_run_metadata import read_tf_run_metadata
    from pace_servers.throughput import (
        StepSimulation,
        fit_overhead,
        predict,
        simulate_steps,
        steps_from_profile,
    )

_HOMES = {
    "pace_servers.documents.fleet": ("Fleet",),
    "pace_servers.documents.prediction": (
        "PredictionOptions",
        "ThroughputPrediction",
    ),
    "pace_servers.tf_run_metadata": ("read_tf_run_metadata",),
    "pace_servers.throughput": (
        "StepSimulation",
        "fit_overhead",
        "predict",
        "simulate_steps",
        "steps_from_profile",
    ),
}

__all__ = [
    "Fleet",
    "PredictionOptions",
    "StepSimulation",
    "ThroughputPrediction",
    "fit_overhead",
    "predict",
    "read_tf_run_metadata",
    "simulate_steps",
    "steps_from_profile",
]

__getattr__ = loads_names(__name__, _HOMES)
