"""When worker processes start, and what the first of them waits for."""

import math
import re
import time
from pathlib import Path

import psutil
import pytest

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
    with ServiceProcess(tmp_path, environment={"NUMBA_CACHE_DIR": str(compiled)}) as service:
        assert service.post_schedule(layered_profile(5)).status_code == 201
        assert len(_compiling(compiled)) == 1
        assert service.post_schedule(layered_profile(6)).status_code == 201
        service.kill()
    deadline = time.monotonic() + 60
    while _compiling(compiled):
        assert time.monotonic() < deadline
        time.sleep(0.1)
