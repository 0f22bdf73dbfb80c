"""Simulation: what a window takes under the policies of the field, from a profile.

``simulate(profile, policy)`` runs one or several windows. Ready times never depend on communication
(Assumption A), so a window falls into three steps: when gradients become ready, what the policy puts on the
network and when that ends (``pace.simulation.network``), and what the forward pass then waits for.
"""

from pace.simulation.policies import POLICIES, knobs_of, make_policy
from pace.simulation.run import SimulatedWindow, Simulation, simulate

__all__ = ["POLICIES", "SimulatedWindow", "Simulation", "knobs_of", "make_policy", "simulate"]
