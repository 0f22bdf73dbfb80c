"""Throughput of asynchronous training with parameter servers, predicted from one worker's recorded steps.

``predict(steps, options)`` tells how many workers are worthwhile. ``simulate_steps`` simulates one number of
workers.
"""

from pace_servers.throughput.from_profile import steps_from_profile
from pace_servers.throughput.prediction import predict
from pace_servers.throughput.recorded_steps import fit_overhead
from pace_servers.throughput.simulate import StepSimulation, simulate_steps

__all__ = ["StepSimulation", "fit_overhead", "predict", "simulate_steps", "steps_from_profile"]
