"""Starts and ends real service processes on free loopback ports."""

import contextlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from pace.api.settings import Settings
from pace.api.storage.database import Database
from pace.api.storage.keys import SCOPES, KeyRing, Scope
from tests.api.databases import new_sqlite
from tests.fork_server import ForkedProcess, ForkServer

_SERVER = ForkServer(__name__)

START_TIMEOUT_S = 200.0


def new_client(*, timeout_s: float = 250, **options: Any) -> httpx.Client:
    """Return a client that asks nobody's proxy, and reads no certificates, which would take long."""
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=False, **options)


class Caller:
    """A client of a running service, which may be others' too: of a tenant of its own."""

    def __init__(self, process: "ServiceProcess", tenant: str = "default", token: str | None = None) -> None:
        self.process = process
        self.tenant = tenant
        self.token = token
        self.url = process.url
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = new_client(base_url=self.url, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.http.close()

    def post_schedule(self, profile: dict[str, Any], **more: Any) -> httpx.Response:
        """POST a profile, with options and job if given."""
        return self.http.post("/v1/schedules", json={"profile": profile, **more})

    def events(self, name: str, at_least: int = 0) -> int:
        """How many of this tenant's events of a name are in the log, waiting for so many."""
        return len(self.process.events(name, at_least, tenant=self.tenant))


class ServiceProcess:
    """One service process; settings are given as they are in the environment, without ``PACE_``.

    With a `command` it is a program started anew, else a fork of one that has loaded the service's modules.

    Parameters
    ----------
    folder
        Where its log is, and its database unless `database_url` says otherwise.
    command
        What runs ``-m pace.api.serve``, for what a fork cannot show: the interpreter, or a program before it.
    environment
        Further variables.
    max_descriptors
        How many files and connections a fork may have open.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str | None = None,
        *,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        max_descriptors: int | None = None,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.command = command
        self.environment = environment or {}
        self.max_descriptors = max_descriptors
        self.settings = {
            "database_url": database_url or new_sqlite(folder),
            "solver_processes": 1,
            "reader_processes": 1,
            **settings,
        }
        self.log_path = folder / f"service-{time.monotonic_ns()}.log"
        self.url = ""
        self.http = new_client()
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()
        self.http.close()

    def start(self) -> None:
        """Start the process and wait until it listens."""
        environment = {**_environment(self.settings), **self.environment}
        before = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = self._start_process(environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            listening = [line for line in self.log(before) if line.get("event") == "listening"]
            if listening:
                self.url = listening[0]["url"]
                self.http.base_url = httpx.URL(self.url)
                # It listens before it has migrated the database; this is answered afterwards.
                self.http.get("/healthz").raise_for_status()
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the service did not start:\n{self.log_path.read_text()}")

    def _start_process(self, environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | ForkedProcess":
        if not self.command:
            limit = "" if self.max_descriptors is None else str(self.max_descriptors)
            return _SERVER.fork([limit, "--port", "0"], output=self.log_path, environment=environment)
        command = [*self.command, "-m", "pace.api.serve", "--port", "0"]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def caller(self) -> Caller:
        """Return a client of the tenant that all are without keys."""
        return Caller(self)

    def tenant(self) -> Caller:
        """Return a client of a new tenant, with a key that may do everything; the service wants keys."""
        name = f"tenant-{uuid.uuid4().hex[:8]}"
        return Caller(self, name, self.token(name, *SCOPES))

    def token(self, tenant: str, *scopes: Scope) -> str:
        """Return a new key of a tenant."""
        database = Database(Settings(database_url=str(self.settings["database_url"])).parsed_database_url)
        token = KeyRing(database).create(tenant, f"{tenant}'s", scopes)
        database.close()
        return token

    def events(self, name: str, at_least: int = 0, **fields: str) -> list[dict[str, Any]]:
        """Return the log's events of a name and with these fields, waiting for so many.

        An answer may arrive before the lines that tell of it.
        """
        wanted = {"event": name, **fields}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = [
                entry
                for entry in self.log(about=name)
                if all(entry.get(key) == value for key, value in wanted.items())
            ]
            if len(found) >= at_least or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def workers(self) -> list[psutil.Process]:
        """Return its worker processes: what the server that it started forked."""
        found = []
        for server in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += server.children()
        return found

    def stop(self) -> int:
        """Ask the process to end, as an orchestrator would; return its exit status."""
        if self._process is None:
            return 0
        self.terminate()
        return self.wait()

    def terminate(self) -> None:
        """Ask the process to end and return at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def suspend(self) -> None:
        """Have the process do nothing until it is resumed or killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on, if it was suspended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait until the process has ended; return its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(200)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process as a crash would (kill -9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self, start: int = 0, about: str = "") -> list[dict[str, Any]]:
        """Return the log's lines that are JSON, from a byte on and only those with some words in them."""
        entries = []
        for line in self.log_path.read_bytes()[start:].splitlines():
            if about.encode() not in line:
                continue
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
        return entries

    def post_schedule(self, profile: dict[str, Any], **more: Any) -> httpx.Response:
        """POST a profile, with options and job if given."""
        return self.http.post("/v1/schedules", json={"profile": profile, **more})


def load() -> None:
    """Load what the service needs, for the server that forks it."""
    import pace.api.http.server
    import pace.api.logs
    import pace.api.storage.migrations
    import pace.api.workers.pool
    from pace.api.workers.kernels import load_kernels

    load_kernels()
    import pace.api.workers.preloaded  # noqa: F401 - loaded, not used
    from pace.api.http.app import create_app

    # Its description takes a second to make, in every process that does not find it.
    create_app(Settings()).openapi()


def serve_in_vain(folder: Path, *arguments: str, **settings: object) -> tuple[int, str]:
    """Start the service, which will not run; return its exit status and what it wrote."""
    return _run_to_its_end(["", "--port", "0", *arguments], folder, _environment(settings))


def run_program(program: str, folder: Path) -> tuple[int, str]:
    """Run a program whose workers find everything loaded; return its exit status and what it wrote."""
    return _run_to_its_end(["-c", program], folder, _environment({}))


def _run_to_its_end(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    output = folder / f"output-{time.monotonic_ns()}.log"
    ended = _SERVER.fork(arguments, output=output, environment=environment)
    try:
        return ended.wait(START_TIMEOUT_S), output.read_text()
    finally:
        ended.kill()


@contextlib.contextmanager
def serving_on(terminal: str, folder: Path) -> Iterator[ForkedProcess]:
    """Start the service on a terminal, with a database in a folder; it has ended when the context ends."""
    environment = _environment({"database_url": new_sqlite(folder)})
    process = _SERVER.fork(["", "--port", "0"], output=Path(terminal), environment=environment)
    try:
        yield process
    finally:
        process.kill()


def compile_all() -> None:
    """Have all that workers need compiled, beside the modules."""
    _SERVER.load("pace.api.workers.kernels")  # the server has loaded the kernels before it can be asked


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("PACE_")}
    return others | {f"PACE_{name.upper()}": str(value) for name, value in settings.items()}


def run(arguments: list[str]) -> int:
    """Be the service, as ``python -m pace.api.serve`` is, or the program that follows ``-c``.

    The service's first argument may limit its open files.
    """
    max_descriptors, *arguments = arguments
    if max_descriptors == "-c":
        start_worker_server()
        exec(arguments[0], {"__name__": "__main__"})
        return 0
    if max_descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(max_descriptors), int(max_descriptors)))
    start_worker_server()
    sys.argv = ["pace.api.serve", *arguments]
    try:
        runpy.run_module("pace.api.serve", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def start_worker_server() -> None:
    """Start the server that forks the service's workers as a fork, too: it finds everything loaded.

    The service starts it as a new program when it needs the first worker, unless it runs already.
    """
    resource_tracker.ensure_running()
    spawn = vars(util)["spawnv_passfds"]
    vars(util)["spawnv_passfds"] = _fork_program
    try:
        forkserver.ensure_running()
    finally:
        vars(util)["spawnv_passfds"] = spawn


def _fork_program(_python: bytes, command: Sequence[str], passed: Sequence[int]) -> int:
    """Run the program of ``python -c`` in a fork that has these descriptors and no others."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in passed:
                with contextlib.suppress(OSError):  # that of the folder itself
                    os.close(int(name))
        exec(command[-1], {})
    finally:
        os._exit(1)
