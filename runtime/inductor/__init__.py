"""PACE under ``torch.compile``: plans the collectives of the graphs that Inductor compiles."""

from pace.runtime.inductor.collective_planner import CollectivePlanner, PlannedGraph

__all__ = ["CollectivePlanner", "PlannedGraph"]
