"""Whole training runs over a fabric, simulated: planned transfers, plain servers, and collectives."""

from pace.simulation.fabric.records import FabricRun
from pace.simulation.fabric.run import FABRIC_POLICIES, simulate_fabric

__all__ = ["FABRIC_POLICIES", "FabricRun", "simulate_fabric"]
