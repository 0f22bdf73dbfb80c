"""What ``pace`` itself offers, and that every module's name means the module."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import pace

HEAVY = {"matplotlib", "numba", "numpy", "pydantic", "scipy", "torch", "typer"}
# What only Alembic can import, and what needs an extra that is not always installed.
SKIPPED = ("pace.api.storage.migrations.env", "pace.api.workers.dask_", "pace.runtime.")


def test_exported_names() -> None:
    """The public surface: a name that goes needs a line in the changelog."""
    assert sorted(pace.__all__) == [
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
        "POLICIES",
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
    for name in pace.__all__:
        assert getattr(pace, name) is not None


def test_import_pace_is_light() -> None:
    """The first line of a training script does not wait for what it may never use."""
    code = "import sys, pace; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_no_module_is_shadowed() -> None:
    """``import pace.x.y`` gives the module, never a function or a class of its name."""
    for name in pace.__all__:
        getattr(pace, name)
    checked = 0
    for found in pkgutil.walk_packages(pace.__path__, "pace."):
        if found.name.startswith(SKIPPED):
            continue
        module = importlib.import_module(found.name)
        package, _, last = found.name.rpartition(".")
        assert getattr(sys.modules[package], last) is module, found.name
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("package", ["pace", "pace.runtime"])
@pytest.mark.parametrize(
    ("name", "home"), [("DistributedOptimizer", "pace.runtime.torch"), ("attach", "pace.runtime.ddp")]
)
def test_a_wrapper_imported_from_the_wrong_package_is_told_of(package: str, name: str, home: str) -> None:
    """The message has the line to write instead."""
    with pytest.raises(ImportError, match=f"{package} has no {name}: use `from {home} import {name}`"):
        exec(f"from {package} import {name}")
