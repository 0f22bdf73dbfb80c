"""Whole training runs over a fabric, simulated: planned transfers, plain servers, and collectives."""

from pace_fabric.simulation.records import FabricRun
from pace_fabric.simulation.run import FABRIC_POLICIES, simulate_fabric

__all__ = ["FABRIC_POLICIES", "FabricRun", "simulate_fabric"]
