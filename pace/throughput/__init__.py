"""Throughput of asynchronous training with parameter servers, predicted from one worker's recorded steps.

``predict(steps, options)`` tells how many workers are worthwhile. ``simulate_steps`` simulates one number of
workers.
"""

from pace.throughput.from_profile import steps_from_profile
from pace.throughput.overhead import fit_overhead
from pace.throughput.prediction import predict
from pace.throughput.simulate import StepSimulation, simulate_steps

__all__ = ["StepSimulation", "fit_overhead", "predict", "simulate_steps", "steps_from_profile"]
