"""PACE under ``torch.compile``: plans the collectives of the graphs that Inductor compiles."""

from pace.runtime.transports.torch_versions import PLANNER, require_torch

require_torch(PLANNER, ImportError)  # the modules below import what older versions do not have

import pace.solver.compiled  # noqa: E402, F401 - says what to install if it cannot plan
from pace.runtime.inductor.collective_planner import CollectivePlanner, PlannedGraph  # noqa: E402

__all__ = ["CollectivePlanner", "PlannedGraph"]
