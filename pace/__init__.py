"""PACE: schedules gradient all-reduces so that communication hides behind compute.

A profile is one measured training iteration; its schedule says which gradients to fuse, how to cut them, and
in which order to send the pieces::

    profile = pace.load_profile("profile.json")
    schedule = pace.optimize(profile)
    assert pace.check(profile, schedule) == []
    pace.simulate(profile, ["ddp", "pace"])["ddp"].iteration_s

What is exported here is loaded when it is first used. Where the rest is:

- ``pace.runtime.torch``, ``pace.runtime.horovod``: optimizers that train by a schedule.
- ``pace.documents``: profiles, schedules, options, costs of all-reduces.
- ``pace.planning``: which exchange fits a profile, the planner of each, and what to tell DDP and Horovod.
- ``pace.simulation``, ``pace.whatif``: policies of the field; other networks and scales.
- ``pace.models``, ``pace.formats``: profiles computed from layer shapes; profiles and costs from other tools.
- ``pace.checker``: the independent judge of schedules.
- ``pace.order``: the proof that a job's collectives cannot hang.
- ``pace.view``: timelines and charts.
- ``pace.client``, ``pace.api``: the service's client, and the service.
- ``pace.solver``: the mathematics.
"""

from typing import TYPE_CHECKING

from pace.errors import (
    AccessDenied,
    CommunicationFailed,
    FormatError,
    InvalidCluster,
    InvalidGraph,
    InvalidJobProgram,
    InvalidOptions,
    InvalidProfile,
    InvalidSchedule,
    InvalidSteps,
    InvalidUse,
    PaceError,
    RequestRefused,
    ScheduleMismatch,
    ServiceUnavailable,
    SolverFailed,
)
from pace.lazy_names import WRAPPERS, loads_names
from pace.version import __version__

if TYPE_CHECKING:
    from pace.documents.cluster import Cluster, load_cluster
    from pace.documents.graph.collective_graph import CollectiveGraph, load_graph, parse_graph
    from pace.documents.options import Options
    from pace.documents.order.job_program import JobProgram, load_job_program, parse_job_program
    from pace.documents.order.order_report import OrderReport
    from pace.documents.profile import Gradient, Op, Profile, load_profile, parse_profile
    from pace.documents.schedule import Schedule, load_schedule, parse_schedule
    from pace.documents.steps import StepsDocument, load_steps, parse_steps
    from pace.formats.chakra import read_chakra
    from pace.formats.fit import fit_cost
    from pace.formats.horovod_timeline import read_horovod_profile
    from pace.formats.kineto import read_kineto
    from pace.formats.layers import read_layer_csv
    from pace.formats.node_list import read_node_list, read_times
    from pace.formats.pipedream import read_pipedream
    from pace.formats.shaped_steps import read_execution_trace_profile
    from pace.kinds import check, optimize
    from pace.kinds.comparison import simulate
    from pace.order.check_order import check_order
    from pace.simulation import POLICIES, SimulationOptions, make_policy
    from pace.whatif import Grid, what_if

_HOMES = {
    "pace.kinds": ("check", "optimize"),
    "pace.kinds.comparison": ("simulate",),
    "pace.documents.cluster": ("Cluster", "load_cluster"),
    "pace.documents.graph.collective_graph": ("CollectiveGraph", "load_graph", "parse_graph"),
    "pace.documents.options": ("Options",),
    "pace.documents.order.job_program": ("JobProgram", "load_job_program", "parse_job_program"),
    "pace.documents.order.order_report": ("OrderReport",),
    "pace.order.check_order": ("check_order",),
    "pace.documents.profile": ("Gradient", "Op", "Profile", "load_profile", "parse_profile"),
    "pace.documents.schedule": ("Schedule", "load_schedule", "parse_schedule"),
    "pace.documents.steps": ("StepsDocument", "load_steps", "parse_steps"),
    "pace.formats.chakra": ("read_chakra",),
    "pace.formats.fit": ("fit_cost",),
    "pace.formats.horovod_timeline": ("read_horovod_profile",),
    "pace.formats.kineto": ("read_kineto",),
    "pace.formats.layers": ("read_layer_csv",),
    "pace.formats.node_list": ("read_node_list", "read_times"),
    "pace.formats.pipedream": ("read_pipedream",),
    "pace.formats.shaped_steps": ("read_execution_trace_profile",),
    "pace.simulation": ("POLICIES", "SimulationOptions", "make_policy"),
    "pace.whatif": ("Grid", "what_if"),
}

__all__ = [
    "POLICIES",
    "AccessDenied",
    "Cluster",
    "CollectiveGraph",
    "CommunicationFailed",
    "FormatError",
    "Gradient",
    "Grid",
    "InvalidCluster",
    "InvalidGraph",
    "InvalidJobProgram",
    "InvalidOptions",
    "InvalidProfile",
    "InvalidSchedule",
    "InvalidSteps",
    "InvalidUse",
    "JobProgram",
    "Op",
    "Options",
    "OrderReport",
    "PaceError",
    "Profile",
    "RequestRefused",
    "Schedule",
    "ScheduleMismatch",
    "ServiceUnavailable",
    "SimulationOptions",
    "SolverFailed",
    "StepsDocument",
    "__version__",
    "check",
    "check_order",
    "fit_cost",
    "load_cluster",
    "load_graph",
    "load_job_program",
    "load_profile",
    "load_schedule",
    "load_steps",
    "make_policy",
    "optimize",
    "parse_graph",
    "parse_job_program",
    "parse_profile",
    "parse_schedule",
    "parse_steps",
    "read_chakra",
    "read_execution_trace_profile",
    "read_horovod_profile",
    "read_kineto",
    "read_layer_csv",
    "read_node_list",
    "read_pipedream",
    "read_times",
    "simulate",
    "what_if",
]


__getattr__ = loads_names(__name__, _HOMES, WRAPPERS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
