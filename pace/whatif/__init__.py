"""What-if: what a job would gain from which policy, on which network, at which scale.

``what_if(profile, grid)`` simulates every point of a grid under every policy; ``bandwidth_for`` finds the
bandwidth at which a wanted scaling efficiency is reached. What scales how is in ``pace.whatif.scenario``.
"""

from pace.whatif.grid import Grid
from pace.whatif.results import Answer, Cell, WhatIf
from pace.whatif.run import estimate_s, what_if
from pace.whatif.scenario import ASSUMPTIONS, Scenario, profile_at
from pace.whatif.target import bandwidth_for

__all__ = [
    "ASSUMPTIONS",
    "Answer",
    "Cell",
    "Grid",
    "Scenario",
    "WhatIf",
    "bandwidth_for",
    "estimate_s",
    "profile_at",
    "what_if",
]
