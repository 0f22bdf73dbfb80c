"""Real worker processes for tests: starts N ranks, gives them a rendezvous, collects what they return.

A worker is a function at the top level of a test module. Every rank runs it in a process of its own
as ``worker(rank, size, *arguments)``, after the backend it asked for is ready. Arguments and results
travel pickled. Ranks that outlive the time-out are killed, and so is everything when the caller ends.
"""

import contextlib
import importlib
import importlib.util
import os
import pickle
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Literal, TypeVar

from tests.fork_server import ForkedProcess, ForkServer

K = TypeVar("K")

Backend = Literal["gloo", "horovod", "none"]

# Neighboring ranks come from different servers and differ as the processes of a real job do: in the seed of
# Python's hashes, and so in the order of sets, and in memory addresses.
SERVERS = (ForkServer(__name__, hash_seed=1), ForkServer(__name__, hash_seed=2))

# What nearly all ranks load. Nothing of it starts a thread before it is used.
_LOADED_ONCE = (
    "torch",
    "torch._dynamo",  # which torch's optimizers load when the first is built
    "torch.distributed",
    "numpy",
    "hypothesis",
    "pytest",
    "pace.cli",
    "pace.runtime.torch",
    "tests.runtime.models",
    "tests.runtime.schedules",
    "tests.runtime.training",
)
_LOADED_WHERE_INSTALLED = {"horovod": ("horovod.torch", "pace.runtime.horovod")}


def load_for_all(*modules: str) -> None:
    """Have ranks find modules loaded that some tests need, all of whose ranks would load them each."""
    for server in SERVERS:
        for module in modules:
            server.load(module)


class RanksFailed(AssertionError):
    """One or more ranks raised, died or did not end in time; the message holds their tracebacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one rank ended.

    Attributes
    ----------
    result
        What the worker returned; None when it did not return.
    error
        The class name of the exception it raised; None when it raised none.
    message
        The exception's text, or what else is known of a rank that died.
    output
        Everything that the rank wrote to stdout and stderr.
    exit_code
        The process's exit code, negative for a signal; None when it was killed for being late.
    """

    rank: int
    result: Any = None
    error: str | None = None
    message: str = ""
    output: str = ""
    exit_code: int | None = None

    @property
    def returned(self) -> bool:
        """Whether the worker ran to its end."""
        return self.exit_code == 0 and self.error is None


def run_ranks(
    worker: Callable[..., Any],
    size: int,
    *arguments: Any,
    backend: Backend = "gloo",
    timeout_s: float = 250.0,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Run `worker` on `size` ranks and return their results in rank order.

    Raises
    ------
    RanksFailed
        When any rank did anything but return.
    """
    outcomes = try_ranks(
        worker, size, *arguments, backend=backend, timeout_s=timeout_s, environment=environment
    )
    failed = [outcome for outcome in outcomes if not outcome.returned]
    if failed:
        raise RanksFailed(
            "\n".join(
                f"rank {outcome.rank} of {size}: {outcome.error or 'no exception'}"
                f" (exit {outcome.exit_code}): {outcome.message}\n{outcome.output}"
                for outcome in failed
            )
        )
    return [outcome.result for outcome in outcomes]


def try_ranks(
    worker: Callable[..., Any],
    size: int,
    *arguments: Any,
    backend: Backend = "gloo",
    timeout_s: float = 250.0,
    environment: dict[str, str] | None = None,
    expect_lost: Sequence[int] = (),
) -> list[Outcome]:
    """Run `worker` on `size` ranks and say how each ended, whatever happened.

    Ranks in `expect_lost` (those that a test kills or stops) are not waited for: they are killed when
    all others have ended.
    """
    with tempfile.TemporaryDirectory(prefix="pace-ranks-") as folder, _rendezvous(backend, size) as shared:
        Path(folder, "arguments").write_bytes(pickle.dumps(arguments))
        processes = []
        try:
            for rank in range(size):
                processes.append(_start(worker, rank, size, backend, folder, shared | (environment or {})))
            deadline = time.monotonic() + timeout_s
            waited_for = [process for rank, process in enumerate(processes) if rank not in expect_lost]
            while time.monotonic() < deadline and any(process.poll() is None for process in waited_for):
                time.sleep(0.02)
        finally:
            exits = [process.poll() for process in processes]
            for process in processes:
                process.kill()
        return [_outcome(rank, folder, exits[rank]) for rank in range(size)]


def try_jobs(jobs: Mapping[K, Callable[[], list[Outcome]]]) -> dict[K, list[Outcome]]:
    """Call ``try_ranks`` for several jobs, two at a time: for jobs that mostly wait for a time-out."""
    with ThreadPoolExecutor(2) as threads:
        running = {name: threads.submit(job) for name, job in jobs.items()}
    return {name: each.result() for name, each in running.items()}


def _start(
    worker: Callable[..., Any], rank: int, size: int, backend: Backend, folder: str, extra: dict[str, str]
) -> ForkedProcess:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        # torch's stores look up names: a name server that drops a question is not waited for long.
        "RES_OPTIONS": "timeout:1 attempts:2",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_LOCAL_RANK": str(rank),
    }
    arguments = [worker.__code__.co_filename, worker.__qualname__, str(rank), str(size), backend, folder]
    server = SERVERS[rank % len(SERVERS)]
    return server.fork(arguments, output=Path(folder, f"output.{rank}"), environment=environment | extra)


def _outcome(rank: int, folder: str, exit_code: int | None) -> Outcome:
    output = Path(folder, f"output.{rank}").read_text(errors="replace")
    written = Path(folder, f"outcome.{rank}")
    if not written.exists():
        message = "did not end in time" if exit_code is None else "ended without a result"
        return Outcome(rank=rank, message=message, output=output, exit_code=exit_code)
    result, error, message = pickle.loads(written.read_bytes())
    return Outcome(rank=rank, result=result, error=error, message=message, output=output, exit_code=exit_code)


@contextlib.contextmanager
def _rendezvous(backend: Backend, size: int) -> Iterator[dict[str, str]]:
    if backend != "horovod":
        yield {}
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

    class ScopeByScope(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
        # Horovod's own forgets, when one scope is finished, who has finished the others. Their addresses stay
        # then, and a rank that initializes Horovod again connects to a closed port.
        def do_DELETE(self) -> None:  # noqa: N802  # named by http.server
            with finishing:
                others = dict(self.server.finished_list)
                others.pop(self.path.split("/")[1], None)
                super().do_DELETE()
                self.server.finished_list.update(others)

    finishing = threading.Lock()
    server = RendezvousServer(verbose=0)
    port = server.start(ScopeByScope)
    server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size, size))
    try:
        yield {
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_SIZE": str(size),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo",
        }
    finally:
        server.stop()
        server._httpd.server_close()  # stop() leaves the listening socket open


def _join_gloo(rank: int, size: int, folder: str) -> None:
    import datetime

    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    # Rank 0 binds whatever port is free and says which: no port is chosen before it is taken.
    timeout = datetime.timedelta(seconds=200)
    address = Path(folder, "port")
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, size, True, timeout, wait_for_workers=False)
        Path(folder, "port.new").write_text(str(store.port))
        Path(folder, "port.new").rename(address)
    else:
        deadline = time.monotonic() + 200
        while not address.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 opened no port")
            time.sleep(0.01)
        store = TCPStore("127.0.0.1", int(address.read_text()), size, False, timeout)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def _leave_gloo() -> None:
    import torch.distributed as dist

    # A group left to the interpreter's exit may abort it: its threads outlive what they use.
    if dist.is_initialized():
        dist.destroy_process_group()


def _load(path: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("worker_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_module"] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _main(path: str, name: str, rank: int, size: int, backend: str, folder: str) -> int:
    result, error, message = None, None, ""
    try:
        worker = _load(path, name)
        arguments = pickle.loads(Path(folder, "arguments").read_bytes())
        if backend == "gloo":
            _join_gloo(rank, size, folder)
        result = worker(rank, size, *arguments)
        if backend == "gloo":
            _leave_gloo()
    except BaseException as raised:
        traceback.print_exc()
        error, message = type(raised).__name__, str(raised)
    document = pickle.dumps((result, error, message))
    Path(folder, f"outcome.{rank}.new").write_bytes(document)
    Path(folder, f"outcome.{rank}.new").rename(Path(folder, f"outcome.{rank}"))
    return 0 if error is None else 1


def load() -> None:
    """Load what ranks need, for the server that forks them."""
    load_modules()
    _hurry()


def _hurry() -> None:
    """Measure networks and modes only briefly, and ask services often: tests of ranks are not about speed."""
    settings: dict[str, dict[str, Any]] = {
        "pace.runtime.capture.cost_sampler": {"BUDGET_S": 0.3, "SECONDS_PER_RUN": 0.002},
        "pace.runtime.control.trial": {"MEASURED": 1},
        "pace.runtime.control.replanner": {"FIRST_DELAY_S": 0.1},
    }
    for module, values in settings.items():
        vars(importlib.import_module(module)).update(values)


def load_modules() -> None:
    """Load what ranks need."""
    names = list(_LOADED_ONCE)
    for package, modules in _LOADED_WHERE_INSTALLED.items():
        if importlib.util.find_spec(package) is not None:
            names += modules
    for name in names:
        # What cannot be loaded is an error of the rank that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Nearly all make a plan; loading what is compiled takes a second of each.
    importlib.import_module("pace.planning.allreduce.optimize").warm_up()
    # Inductor's C++ is compiled without processes for that, precompiled headers, and trials of vectors.
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1
    inductor.cpp_cache_precompile_headers = False
    inductor.cpp.vec_isa_ok = False


def run(arguments: list[str]) -> "int | CodeType":
    """Be a rank, or what ``tests.runtime.programs`` starts."""
    if arguments[0] == "program":
        found: int | CodeType = importlib.import_module("tests.runtime.programs").run(arguments[1:])
        return found
    path, name, rank, size, backend, folder = arguments
    code = _main(path, name, int(rank), int(size), backend, folder)
    sys.stdout.flush()
    if os.environ.get("LEAVE_AT_ONCE"):  # for ranks whose own clean-up would wait for a stopped one
        os._exit(code)
    return code
