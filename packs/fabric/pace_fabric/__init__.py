"""The fabric: updates of many workers, and weights for them, over links of unequal and changing speed.

A pack for PACE: its documents, mathematics, planner, checker, simulation and commands; what runs it is
``pace_fabric.runtime``, and ``pace_fabric.service`` offers it over HTTP.
"""

from pace_fabric.errors import InvalidFabric

__all__ = ["InvalidFabric"]
