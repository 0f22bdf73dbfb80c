"""Tasks on a real Dask cluster: a scheduler and two workers, one killed at work."""

import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pace import Options, optimize, parse_profile
from tests.api.dask_part import start_part
from tests.api.process import Caller, ServiceProcess
from tests.api.profiles import layered_profile
from tests.fork_server import ForkedProcess

pytestmark = pytest.mark.races_with_machine(
    reason="the parts of a cluster must find one another within its time-outs"
)

pytest.importorskip("distributed")

ASYNC = {"Prefer": "respond-async"}
# With the paper's fusion, a solve of seconds.
LONG = layered_profile(3000)


class Cluster:
    """A scheduler and workers in processes of their own; one of the workers is minded by a nanny."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[ForkedProcess] = []
        self.address = self._start_scheduler("0")

    def _start_scheduler(self, port: str) -> str:
        number = len(self.processes)
        self._start("dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        log = self._log(number)
        while "Scheduler at:" not in log:
            assert self.processes[number].poll() is None, log
            time.sleep(0.05)
            log = self._log(number)
        return log.partition("Scheduler at:")[2].split()[0]

    def lose_scheduler(self) -> None:
        """Kill the scheduler, and the workers with it."""
        for process in self.processes:
            process.kill()

    def start_again(self) -> None:
        """Start another scheduler at the same address."""
        assert self._start_scheduler(self.address.rpartition(":")[2]) == self.address

    def add_worker(self, *options: str) -> None:
        """Start one more worker."""
        name = f"worker-{len(self.processes)}"
        self._start(
            "dask_worker",
            *(self.address, "--nthreads", "1", "--no-dashboard", "--name", name),
            *("--local-directory", str(self.folder), *options),
        )

    def _start(self, module: str, *options: str) -> None:
        output = self.folder / f"{len(self.processes)}.log"
        self.processes.append(start_part(module, *options, output=output))

    def _log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    def close(self) -> None:
        """End everything."""
        for process in reversed(self.processes):
            family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            for child in family:
                if child.is_running():
                    child.kill()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a scheduler; workers come with the test."""
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.close()


def _busy_worker(cluster: Cluster, is_answered: Callable[[], bool]) -> psutil.Process:
    """Wait until a worker has a process at work, and return the worker; none is once there is an answer."""
    while True:
        assert not is_answered(), "the task had ended before a worker was seen at work"
        for started in cluster.processes[1:]:
            family = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
            for process in family:
                # A process for tasks is a fork of a child and uses time, which one that is idle never does;
                # on a busy machine it gets little.
                for server in process.children():
                    # The server that forks is itself a fork, or was started as a program under a nanny.
                    is_server = re.search("fork_?server", " ".join(server.cmdline()))
                    forks = server.children() if is_server else []
                    if any(fork.cpu_percent(0.1) > 3 for fork in forks):
                        return process
        time.sleep(0.05)


@functools.cache
def _expected_of_long() -> dict[str, Any]:
    expected = optimize(parse_profile(json.dumps(LONG)), Options(fusion="paper"))
    return json.loads(expected.to_json())  # type: ignore[no-any-return]


def _wait_for_capacity(service: ServiceProcess, threads: int) -> None:
    while f"pace_solvers_alive {float(threads)}" not in service.http.get("/metrics").text:
        time.sleep(0.05)


@pytest.mark.slow
def test_a_cluster_does_what_worker_processes_do(cluster: Cluster, tmp_path: Path) -> None:
    """Waits for workers; same answers; a killed worker's solve is done; limits, progress, cancellation."""
    executor = f"dask+{cluster.address}"
    with (
        ServiceProcess(tmp_path, executor=executor, solve_timeout_s=250) as service,
        service.caller() as caller,
    ):
        early = caller.http.post("/v1/schedules", json={"profile": layered_profile(9)}, headers=ASYNC)
        assert early.status_code == 202
        assert service.http.get("/readyz").status_code == 503
        cluster.add_worker("--no-nanny")
        cluster.add_worker()
        _wait_for_capacity(service, 2)
        assert service.http.get("/readyz").status_code == 200
        _same_answers(caller, early)
        _killed_worker(caller, cluster)
        _followed_and_cancelled(caller)
    assert not list(service.events("task-failed"))


def _same_answers(caller: Caller, early: httpx.Response) -> None:
    path = early.headers["location"]
    while (task := caller.http.get(path).raise_for_status().json())["state"] != "done":
        assert task["state"] in ("queued", "running"), task
        time.sleep(0.05)
    document = layered_profile(9)
    assert caller.http.get(task["location"]).json()["schedule"] == json.loads(
        optimize(parse_profile(json.dumps(document))).to_json()
    )
    refused = caller.post_schedule(layered_profile(3), options={"oracle": "lp"})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:pace:problem:invalid-options")


def _killed_worker(caller: Caller, cluster: Cluster) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(caller.post_schedule, LONG, options={"fusion": "paper"})
        _busy_worker(cluster, answer.done).kill()
        assert answer.result().status_code == 201, answer.result().text
    assert answer.result().json()["schedule"] == _expected_of_long()
    assert caller.events("solved", 2) == 2


def _followed_and_cancelled(caller: Caller) -> None:
    grid = {"bandwidth_gbps": [1 + number / 10 for number in range(4000)]}
    question = {"profile": layered_profile(200), "grid": grid}
    path = caller.http.post("/v1/what-if", json=question, headers=ASYNC).headers["location"]
    while not (task := caller.http.get(path).raise_for_status().json())["num_done"]:
        assert task["state"] in ("queued", "running"), task
        time.sleep(0.05)
    assert caller.http.delete(path).json()["state"] == "cancelled"
    # The one process for what-ifs on the cluster would be busy for minutes had it not been ended.
    quick = {"profile": layered_profile(3), "grid": {"bandwidth_gbps": [1, 10]}}
    assert caller.http.post("/v1/what-if", json=quick).status_code == 201


HOSTILE = """
import os
import pace.api.workers.dask_worker as dask_worker

class Trap:
    def __reduce__(self):
        return os.system, ("tr '\\\\0' '\\\\n' < /proc/$PPID/environ > {folder}/$PPID.sprung",)

dask_worker.work = lambda *_: (True, Trap())
"""


@pytest.mark.slow
def test_what_a_hostile_worker_answers_does_not_execute_in_the_service(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Dask unpickles it in a process that knows no secrets; the service sees no result, and lives."""
    preload = tmp_path / "hostile.py"
    preload.write_text(HOSTILE.format(folder=tmp_path))
    cluster.add_worker("--no-nanny", "--preload", str(preload))
    with ServiceProcess(tmp_path, executor=f"dask+{cluster.address}") as service:
        answer = service.post_schedule(layered_profile(3))
        assert answer.status_code == 500, answer.text
        sprung = {int(path.stem): path.read_text() for path in tmp_path.glob("*.sprung")}
        assert sprung, "the trap was not even unpickled: this test proves nothing"
        assert service.pid not in sprung
        for environment in sprung.values():
            assert "PATH=" in environment
            assert "PACE_" not in environment
        assert service.http.get("/healthz").status_code == 200
        workers = [child.pid for child in psutil.Process(service.pid).children(recursive=True)]
        assert set(sprung) <= {*workers, *(process.pid for process in cluster.processes)}


@pytest.mark.slow
def test_a_runaway_on_the_cluster_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    """Its time is up there as here, and the worker lives to do more."""
    cluster.add_worker("--no-nanny")
    executor = f"dask+{cluster.address}"
    with ServiceProcess(tmp_path, executor=executor, solve_timeout_s=0.3) as service:
        runaway = service.post_schedule(layered_profile(5000), options={"fusion": "paper"})
        assert runaway.status_code == 422, runaway.text
        assert "0.3 s" in runaway.json()["detail"]
        assert service.post_schedule(layered_profile(3)).status_code == 201


@pytest.mark.slow
def test_a_lost_scheduler_loses_no_task(cluster: Cluster, tmp_path: Path) -> None:
    """What it had is done by the next one; meanwhile tasks wait, however long, and are not tried in vain."""
    cluster.add_worker("--no-nanny")
    with (
        ServiceProcess(tmp_path, executor=f"dask+{cluster.address}", max_attempts=2) as service,
        service.caller() as caller,
    ):
        _wait_for_capacity(service, 1)
        question = {"profile": LONG, "options": {"fusion": "paper"}}
        path = caller.http.post("/v1/schedules", json=question, headers=ASYNC).headers["location"]
        _busy_worker(cluster, lambda: caller.http.get(path).json()["state"] not in ("queued", "running"))
        cluster.lose_scheduler()
        while service.http.get("/readyz").status_code == 200:
            time.sleep(0.05)
        later = caller.http.post("/v1/schedules", json={"profile": layered_profile(9)}, headers=ASYNC)
        assert caller.http.get(path).json()["state"] in ("queued", "running")
        cluster.start_again()
        cluster.add_worker("--no-nanny")
        for location in (path, later.headers["location"]):
            while (task := caller.http.get(location).json())["state"] != "done":
                assert task["state"] in ("queued", "running"), task
                time.sleep(0.05)
        answer = caller.http.get(caller.http.get(path).json()["location"]).json()
    assert answer["schedule"] == _expected_of_long()
