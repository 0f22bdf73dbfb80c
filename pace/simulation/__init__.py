"""Simulation: how long a window takes under the policies of the field, from a profile.

``pace.simulate`` compares policies; ``run_policy`` runs one or several windows of one.
Graphs are planned by ``pace.simulation.graph`` and priced like every plan of a graph.
Ready times never depend on communication (Assumption A), so a window is computed in three steps: when
gradients become ready, what the policy sends and when that ends (``pace.simulation.run``), and how long
the forward pass waits for it.
"""

from pace.documents.options import SimulationOptions
from pace.simulation.graph.run import GraphSimulation
from pace.simulation.registry import (
    GRAPH_POLICIES,
    POLICIES,
    knobs_of,
    make_policy,
)
from pace.simulation.run import SimulatedWindow, Simulation, run_policy

__all__ = [
    "GRAPH_POLICIES",
    "POLICIES",
    "GraphSimulation",
    "SimulatedWindow",
    "Simulation",
    "SimulationOptions",
    "knobs_of",
    "make_policy",
    "run_policy",
]
