"""What holds for all tests."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tqdm
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from pace.packs import packs
from tests.fork_server import shared_servers

# Examples are right or wrong, however long a busy machine takes over them; and the same ones in every run,
# unless new ones are asked for (see ``strategies.properties``).
settings.register_profile(
    "pace",
    derandomize="PACE_TEST_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pace")

# Tests and what they start compute with one thread each, as ranks do: beside other work, several threads of
# one process wait for one another, and minutes pass instead of seconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch's interpreter of graphs makes progress bars, and the first one would start a thread that stays.
tqdm.tqdm.monitor_interval = 0

# typer makes all commands anew whenever a test runs one, which takes most of the test's time.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]  # private

# Files that take more than half a minute, the longest first. A process that gets one of these last works on
# alone at the end, while the other has nothing left to do.
LONGEST = (
    "tests/documentation/test_guides.py",
    "tests/documentation/test_examples.py",
    "tests/runtime/loops/test_matrix.py",
    "tests/runtime/inductor/test_collective_planner.py",
    "tests/runtime/fsdp/test_attach.py",
    "tests/api/web/test_accessibility.py",
    "tests/api/test_worker_start.py",
    "tests/api/test_interface.py",
    "tests/load/test_soak.py",
    "tests/runtime/control/test_replanning.py",
    "tests/test_demo.py",
    "tests/runtime/control/test_live_search.py",
    "tests/runtime/fsdp/test_failures.py",
    "tests/test_distribution.py",
    "packs/servers/tests/pace_servers/benchmarks/test_embedding.py",
    "packs/servers/tests/pace_servers/runtime/test_lost_servers.py",
    "tests/runtime/failures/test_failures.py",
    "tests/runtime/shards/test_sharded_weights.py",
    "tests/runtime/test_weights.py",
    "tests/runtime/loops/test_random_loops.py",
    "packs/fabric/tests/pace_fabric/benchmarks/test_fabric.py",
    "tests/runtime/loops/test_published_loops.py",
    "packs/sync/tests/pace_sync/benchmarks/test_diloco.py",
    "tests/testbed/test_real.py",
    "tests/api/test_dask.py",
    "tests/testbed/test_trainer.py",
    "tests/api/test_limits.py",
    "tests/pace/simulation/test_policies.py",
    "tests/api/test_objects.py",
    "tests/scripts/test_gpu_check.py",
    "tests/runtime/shards/test_sharded_failures.py",
    "tests/api/test_together.py",
    "tests/runtime/loops/test_kept_references.py",
    "tests/pace/planning/allreduce/test_optimize.py",
    "tests/pace/simulation/test_who_wins.py",
    "packs/servers/tests/pace_servers/planning/test_optimize.py",
    "tests/api/test_deployment.py",
    "tests/api/test_observability.py",
    "packs/servers/tests/pace_servers/benchmarks/test_over_servers.py",
    "tests/api/web/test_result.py",
    "tests/api/web/test_what_if.py",
    "tests/api/test_fairness.py",
    "tests/runtime/capture/test_allreduce_cost.py",
    "tests/pace/cli/test_what_if.py",
    "tests/runtime/failures/test_absent_ranks.py",
    "tests/runtime/loops/test_lone_readers.py",
    "tests/runtime/loops/test_forked_children.py",
    "tests/runtime/loops/test_everyday_loops.py",
    "tests/runtime/engine/test_on_device.py",
    "tests/pace/cli/test_main.py",
    "tests/pace/simulation/test_twin.py",
    "tests/api/test_client.py",
    "tests/api/test_keys.py",
    "packs/fabric/tests/pace_fabric/runtime/test_failures.py",
    "tests/runtime/shards/test_sharded_service.py",
    "packs/servers/tests/pace_servers/simulation/test_twin.py",
    "tests/runtime/frameworks/test_lightning.py",
    "packs/servers/tests/pace_servers/planning/test_claims.py",
)
_ROOT = Path(__file__).parent
_LONGEST_FIRST = {_ROOT / name: place for place, name in enumerate(LONGEST)}

# How often a test that races with the machine is tried again.
_RERUNS = 2


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have workers share what takes long to load.

    Without workers (``-n0``), keep the plugin for reruns from serving them in a thread: the test bed cannot
    fork a process that has one.
    """
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        servers = contextlib.ExitStack()
        servers.enter_context(shared_servers())
        config.add_cleanup(servers.close)
    reruns = config.pluginmanager.get_plugin("rerunfailures")
    if reruns is not None and not config.getoption("tx", None):
        reruns.ServerStatusDB.run_server = lambda _: None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first, skip tests of absent packs, and try races again.

    ``--reruns N`` decides for all tests instead.
    """
    items.sort(key=lambda item: _LONGEST_FIRST.get(item.path, len(LONGEST)))
    installed = {pack.name for pack in packs()}
    for item in items:
        for needed in item.iter_markers("pack"):
            if needed.args[0] not in installed:
                item.add_marker(pytest.mark.skip(reason=f"the pack {needed.args[0]} is not installed"))
        race = item.get_closest_marker("races_with_machine")
        if race is None:
            continue
        if not race.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: races_with_machine needs reason=")
        if config.getoption("reruns") is None:
            item.add_marker(pytest.mark.flaky(reruns=_RERUNS))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before another try, end the fixtures in which the race took place: they are set up anew."""
    race = item.get_closest_marker("races_with_machine")
    if race is None or getattr(item, "execution_count", 1) == 1:
        return
    shared: Iterable[str] = race.kwargs.get("fixtures", ())
    function: Any = item
    for name in shared:
        for fixture in function._fixtureinfo.name2fixturedefs.get(name, ()):
            fixture.finish(function._request)


@pytest.fixture(scope="module", autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Fail a file of tests that leaves a thread behind: the test bed cannot fork a process that has one."""
    before = set(threading.enumerate())
    yield
    others = [each for each in threading.enumerate() if each not in before]
    deadline = time.monotonic() + 60.0  # some close what they had, or wait for a process that loads
    left = []
    for thread in others:
        if not isinstance(thread, threading._DummyThread):  # stands for one that Python did not start
            thread.join(max(deadline - time.monotonic(), 0.0))
            left += [thread.name] if thread.is_alive() else []
    assert not left, f"threads are left: {left}"
