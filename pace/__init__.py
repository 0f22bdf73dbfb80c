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
- ``pace.throughput``: how many workers are worth having, for training with parameter servers.
- ``pace.models``, ``pace.formats``: profiles computed from layer shapes; profiles and costs from other tools.
- ``pace.checker``: the independent judge of schedules.
- ``pace.order``: the proof that a job's collectives cannot hang.
- ``pace.sync``: plans of weight synchronization for reinforcement learning, and of streaming DiLoCo.
- ``pace.view``: timelines and charts.
- ``pace.client``, ``pace.api``: the service's client, and the service.
- ``pace.solver``: the mathematics.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    InvalidSync,
    InvalidUse,
    PaceError,
    ScheduleMismatch,
    ServiceUnavailable,
    SolverFailed,
)
from pace.version import __version__

if TYPE_CHECKING:
    from pace.checker.deltas import check_deltas
    from pace.checker.outer_sync import check_outer
    from pace.checker.resharding import check_reshard
    from pace.checker.weight_sync import check_sync
    from pace.documents.cluster import Cluster, load_cluster
    from pace.documents.graph.collective_graph import CollectiveGraph, load_graph, parse_graph
    from pace.documents.options import Options
    from pace.documents.order.job_program import JobProgram, load_job_program, parse_job_program
    from pace.documents.order.order_report import OrderReport
    from pace.documents.profile import Gradient, Op, Profile, load_profile, parse_profile
    from pace.documents.schedule import Schedule, load_schedule, parse_schedule
    from pace.documents.sync.delta_sync import (
        DeltaPlan,
        DeltaSync,
        load_delta_plan,
        load_delta_sync,
        parse_delta_plan,
        parse_delta_sync,
    )
    from pace.documents.sync.outer_plan import OuterPlan, load_outer_plan, parse_outer_plan
    from pace.documents.sync.outer_sync import OuterSync, load_outer_sync, parse_outer_sync
    from pace.documents.sync.reshard_plan import ReshardPlan, load_reshard_plan, parse_reshard_plan
    from pace.documents.sync.resharding import Resharding, load_resharding, parse_resharding
    from pace.documents.sync.sync_plan import SyncPlan, load_sync_plan, parse_sync_plan
    from pace.documents.sync.weight_sync import WeightSync, load_weight_sync, parse_weight_sync
    from pace.documents.throughput.fleet import Fleet
    from pace.documents.throughput.prediction import PredictionOptions, ThroughputPrediction
    from pace.documents.throughput.steps import StepsDocument, load_steps, parse_steps
    from pace.formats.chakra import read_chakra
    from pace.formats.fit import fit_cost
    from pace.formats.horovod_timeline import read_horovod_profile
    from pace.formats.kineto import read_kineto
    from pace.formats.layers import read_layer_csv
    from pace.formats.node_list import read_node_list, read_times
    from pace.formats.pipedream import read_pipedream
    from pace.formats.shaped_steps import read_execution_trace_profile
    from pace.formats.tf_run_metadata import read_tf_run_metadata
    from pace.kinds import check, optimize
    from pace.order.check_order import check_order
    from pace.simulation import POLICIES, SimulationOptions, make_policy, simulate
    from pace.sync.deltas import plan_deltas
    from pace.sync.outer.plan import plan_outer
    from pace.sync.plan import plan_sync
    from pace.sync.reshard import plan_reshard
    from pace.throughput import predict, steps_from_profile
    from pace.whatif import Grid, what_if

_HOMES = {
    "pace.kinds": ("check", "optimize"),
    "pace.checker.outer_sync": ("check_outer",),
    "pace.checker.weight_sync": ("check_sync",),
    "pace.documents.sync.outer_plan": ("OuterPlan", "load_outer_plan", "parse_outer_plan"),
    "pace.documents.sync.outer_sync": ("OuterSync", "load_outer_sync", "parse_outer_sync"),
    "pace.checker.deltas": ("check_deltas",),
    "pace.checker.resharding": ("check_reshard",),
    "pace.documents.sync.delta_sync": (
        "DeltaPlan",
        "DeltaSync",
        "load_delta_plan",
        "load_delta_sync",
        "parse_delta_plan",
        "parse_delta_sync",
    ),
    "pace.documents.sync.reshard_plan": ("ReshardPlan", "load_reshard_plan", "parse_reshard_plan"),
    "pace.documents.sync.resharding": ("Resharding", "load_resharding", "parse_resharding"),
    "pace.documents.sync.sync_plan": ("SyncPlan", "load_sync_plan", "parse_sync_plan"),
    "pace.documents.sync.weight_sync": ("WeightSync", "load_weight_sync", "parse_weight_sync"),
    "pace.sync.deltas": ("plan_deltas",),
    "pace.sync.plan": ("plan_sync",),
    "pace.sync.outer.plan": ("plan_outer",),
    "pace.sync.reshard": ("plan_reshard",),
    "pace.documents.throughput.fleet": ("Fleet",),
    "pace.documents.cluster": ("Cluster", "load_cluster"),
    "pace.documents.graph.collective_graph": ("CollectiveGraph", "load_graph", "parse_graph"),
    "pace.documents.options": ("Options",),
    "pace.documents.order.job_program": ("JobProgram", "load_job_program", "parse_job_program"),
    "pace.documents.order.order_report": ("OrderReport",),
    "pace.order.check_order": ("check_order",),
    "pace.documents.throughput.prediction": ("ThroughputPrediction", "PredictionOptions"),
    "pace.documents.profile": ("Gradient", "Op", "Profile", "load_profile", "parse_profile"),
    "pace.documents.schedule": ("Schedule", "load_schedule", "parse_schedule"),
    "pace.documents.throughput.steps": ("StepsDocument", "load_steps", "parse_steps"),
    "pace.formats.chakra": ("read_chakra",),
    "pace.formats.fit": ("fit_cost",),
    "pace.formats.horovod_timeline": ("read_horovod_profile",),
    "pace.formats.kineto": ("read_kineto",),
    "pace.formats.layers": ("read_layer_csv",),
    "pace.formats.node_list": ("read_node_list", "read_times"),
    "pace.formats.pipedream": ("read_pipedream",),
    "pace.formats.shaped_steps": ("read_execution_trace_profile",),
    "pace.formats.tf_run_metadata": ("read_tf_run_metadata",),
    "pace.simulation": ("POLICIES", "SimulationOptions", "make_policy", "simulate"),
    "pace.throughput": ("predict", "steps_from_profile"),
    "pace.whatif": ("Grid", "what_if"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "POLICIES",
    "AccessDenied",
    "Cluster",
    "CollectiveGraph",
    "CommunicationFailed",
    "DeltaPlan",
    "DeltaSync",
    "Fleet",
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
    "InvalidSync",
    "InvalidUse",
    "JobProgram",
    "Op",
    "Options",
    "OrderReport",
    "OuterPlan",
    "OuterSync",
    "PaceError",
    "PredictionOptions",
    "Profile",
    "ReshardPlan",
    "Resharding",
    "Schedule",
    "ScheduleMismatch",
    "ServiceUnavailable",
    "SimulationOptions",
    "SolverFailed",
    "StepsDocument",
    "SyncPlan",
    "ThroughputPrediction",
    "WeightSync",
    "__version__",
    "check",
    "check_deltas",
    "check_order",
    "check_outer",
    "check_reshard",
    "check_sync",
    "fit_cost",
    "load_cluster",
    "load_delta_plan",
    "load_delta_sync",
    "load_graph",
    "load_job_program",
    "load_outer_plan",
    "load_outer_sync",
    "load_profile",
    "load_reshard_plan",
    "load_resharding",
    "load_schedule",
    "load_steps",
    "load_sync_plan",
    "load_weight_sync",
    "make_policy",
    "optimize",
    "parse_delta_plan",
    "parse_delta_sync",
    "parse_graph",
    "parse_job_program",
    "parse_outer_plan",
    "parse_outer_sync",
    "parse_profile",
    "parse_reshard_plan",
    "parse_resharding",
    "parse_schedule",
    "parse_steps",
    "parse_sync_plan",
    "parse_weight_sync",
    "plan_deltas",
    "plan_outer",
    "plan_reshard",
    "plan_sync",
    "predict",
    "read_chakra",
    "read_execution_trace_profile",
    "read_horovod_profile",
    "read_kineto",
    "read_layer_csv",
    "read_node_list",
    "read_pipedream",
    "read_tf_run_metadata",
    "read_times",
    "simulate",
    "steps_from_profile",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
