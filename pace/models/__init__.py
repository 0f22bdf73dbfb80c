"""Profiles computed from architectures: for planning and benchmarks, never a substitute for measuring.

``build`` counts the work of every layer and turns it into durations at a stated rate; ``with_ratio``
gives the result a network that is slow or fast enough for a wanted ratio of communication to
compute. Every profile made here says in its metadata that it was computed, and from what.
"""

from pace.models.catalog import NAMES, architecture, build
from pace.models.window import communication_ratio, with_ratio

__all__ = ["NAMES", "architecture", "build", "communication_ratio", "with_ratio"]
