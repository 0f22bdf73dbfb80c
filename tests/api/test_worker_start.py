"""When worker processes start, and what the first of them waits for."""

import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.api.compiled import PACKAGES, copy_compiled
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile


def _alive(service: ServiceProcess, what: str) -> float:
    found = re.search(rf"^pace_{what}_alive (\S+)$", service.http.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_service_that_nobody_uses_has_no_workers(tmp_path: Path) -> None:
    """Probes start none, and it is ready; the first request of another kind starts one of each."""
    with ServiceProcess(tmp_path, solver_processes=2) as service:
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert service.http.get(probe).status_code == 200
        assert math.isnan(_alive(service, "solvers"))
        assert math.isnan(_alive(service, "readers"))
        assert service.workers() == []
        assert service.http.get("/v1/jobs").status_code == 200
        while (_alive(service, "solvers"), _alive(service, "readers")) != (1, 1):
            assert service.http.get("/readyz").status_code == 200
            time.sleep(0.05)
        assert len(service.workers()) == 2


def test_processes_that_are_killed_while_they_start_are_started_again(tmp_path: Path) -> None:
    """Workers and the process that forks them: the next request is answered, and the service stays ready."""
    with ServiceProcess(tmp_path) as service:
        assert service.http.get("/v1/jobs").status_code == 200
        for process in psutil.Process(service.pid).children(recursive=True):
            process.kill()
        assert service.post_schedule(layered_profile(5)).status_code == 201
        while (_alive(service, "solvers"), _alive(service, "readers")) != (1, 1):
            time.sleep(0.05)
        assert service.http.get("/readyz").status_code == 200


_NOT_MET = """
import importlib, pkgutil
import pace
from numba.core.registry import CPUDispatcher
from pace.api.workers.kernels import load_kernels

load_kernels()
found = {}
for module in pkgutil.walk_packages(pace.__path__, "pace."):
    if module.name.startswith(("pace.simulation.", "pace.solver.")):
        each = vars(importlib.import_module(module.name)).items()
        found |= {(module.name, name): loop for name, loop in each if isinstance(loop, CPUDispatcher)}
# What compiled code calls is compiled with it.
called = {name for loop in found.values() for name in loop.py_func.__code__.co_names}
for (module, name), loop in found.items():
    if loop.py_func.__module__ == module and name not in called and not loop.overloads:
        print(module, name)
"""
# Commands and programs call these.
_NOT_OF_THE_SERVICE = {
    "pace.simulation.kernels run_worker",
    "pace.solver.kernels.two_links insert_one_by_one",
    "pace.solver.kernels.two_links reinsert",
}


@pytest.mark.pack("fabric")
@pytest.mark.pack("servers")
def test_every_compiled_loop_of_the_service_is_loaded() -> None:
    """No request meets one that workers did not meet as they started: it would wait for the compiler."""
    not_met = subprocess.run([sys.executable, "-c", _NOT_MET], capture_output=True, text=True, check=True)
    assert set(not_met.stdout.splitlines()) == _NOT_OF_THE_SERVICE


def _has_loaded_numba(process: psutil.Process) -> bool:
    return "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, it is a program of its own")
def test_workers_are_forks_of_a_fork_of_the_service(tmp_path: Path) -> None:
    """It loads what they need with the service, before the first is wanted. If it ends, another starts."""
    with ServiceProcess(tmp_path, command=[sys.executable]) as service:
        ours = psutil.Process(service.pid)
        (server,) = (child for child in ours.children() if child.cmdline() == ours.cmdline())
        assert server.net_connections() == []
        deadline = time.monotonic() + 60
        while not _has_loaded_numba(server):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert service.workers() == []
        assert service.post_schedule(layered_profile(5)).status_code == 201
        assert server in {worker.parent() for worker in service.workers()}
        for process in (server, *service.workers()):
            process.kill()
        assert service.post_schedule(layered_profile(6)).status_code == 201
        parents = {worker.parent() for worker in service.workers()}
        assert parents
        assert server not in parents


@pytest.mark.parametrize("end", [ServiceProcess.stop, ServiceProcess.kill], ids=["stopped", "killed"])
def test_a_service_that_nobody_used_leaves_no_process(
    tmp_path: Path, end: Callable[[ServiceProcess], object]
) -> None:
    """Not even the one that will fork workers."""
    with ServiceProcess(tmp_path, command=[sys.executable]) as service:
        family = psutil.Process(service.pid).children(recursive=True)
        assert family
        end(service)
        deadline = time.monotonic() + 120
        while any(_runs(process) for process in family):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # of a first process that reaps none
    except psutil.NoSuchProcess:
        return False


_LATER_WORKERS = """
import asyncio, sys, time
from pace.api.workers.kernels import all_are_loaded
from pace.api.workers.pool import WorkerPool

def new_worker_has_all():
    pool = WorkerPool("the test", 1, 2**32)
    try:
        return asyncio.run(pool.run(all_are_loaded, timeout_s=60))
    finally:
        pool.close()

print(new_worker_has_all(), file=sys.stderr)
while not new_worker_has_all():
    time.sleep(1.0)  # what compiles has the lowest priority, and a new worker takes what it would get
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "is_compiled", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["compiled", "partly"]
)
def test_later_workers_find_everything_loaded(tmp_path: Path, is_compiled: bool) -> None:
    """The first ones find what schedules need; the rest is loaded, and before that compiled, meanwhile."""
    if not is_compiled:
        # A package of its own, with what the tests have compiled, but for a loop of simulations.
        # Other processes may be writing bytecode, and files that they then rename.
        ignore = shutil.ignore_patterns("*.pyc*", "*.tmp*")
        shutil.copytree(PACKAGES[0], tmp_path / "pace", ignore=ignore)
        missing = tmp_path / "pace" / "simulation" / "__pycache__"
        for compiled in missing.glob("kernels.precede*.nb?"):
            compiled.unlink()
    # The folder in which Python starts comes first where it looks for packages.
    done = subprocess.run(
        [sys.executable, "-c", _LATER_WORKERS], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "False\n")
    assert is_compiled or list(missing.glob("kernels.precede*.nbi"))


_LOOKED_AT = """
import signal
import pace.api.workers.preloaded
from pace.api.workers.kernels import all_are_loaded
print(all_are_loaded(), signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM).name)
"""


def test_a_program_that_imports_what_is_preloaded_loads_nothing() -> None:
    """No timer either: it would end the program if it rang while the interpreter ends."""
    done = subprocess.run([sys.executable, "-c", _LOOKED_AT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False (0.0, 0.0) SIG_DFL\n", "")


def test_workers_can_start_with_the_service(tmp_path: Path) -> None:
    """It is ready once they are, without any request."""
    with ServiceProcess(tmp_path, solver_processes=2, start_workers="at-start") as service:
        while service.http.get("/readyz").status_code != 200:
            assert service.http.get("/readyz").json()["database"] == "ok"
            time.sleep(0.05)
        assert (_alive(service, "solvers"), _alive(service, "readers")) == (1, 1)


def _compiling(folder: Path) -> list[psutil.Process]:
    """Return the processes of low priority that compile into a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.nice() == 19 and process.environ().get("NUMBA_CACHE_DIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_answer_does_not_wait_for_all_compilation(tmp_path: Path) -> None:
    """The rest is compiled in the background, for as long as the service lives."""
    compiled = tmp_path / "compiled"
    copy_compiled(compiled, but=["throughput/kernels"])  # which takes a compiler half a minute
    environment = {"NUMBA_CACHE_DIR": str(compiled)}
    with ServiceProcess(tmp_path, command=[sys.executable], environment=environment) as service:
        assert service.post_schedule(layered_profile(5)).status_code == 201
        deadline = time.monotonic() + 300
        while len(_compiling(compiled)) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert service.post_schedule(layered_profile(6)).status_code == 201
        service.kill()
    deadline = time.monotonic() + 60
    while _compiling(compiled):
        assert time.monotonic() < deadline
        time.sleep(0.1)
