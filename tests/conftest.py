"""What holds for all tests."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import tqdm
from hypothesis import HealthCheck, settings

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

# torch's interpreter of graphs makes progress bars, and the first one would start a thread that stays.
tqdm.tqdm.monitor_interval = 0

# Files that take more than half a minute, the longest first. A process that gets one of these last works on
# alone at the end, while the other has nothing left to do.
_LONGEST = (
    "test_examples.py",
    "test_failures.py",
    "test_matrix.py",
    "test_collective_planner.py",
    "test_attach.py",
    "test_replanning.py",
    "test_worker_start.py",
    "test_limits.py",
    "test_dask.py",
    "test_sharded_weights.py",
    "test_objects.py",
    "test_published_loops.py",
    "test_interface.py",
    "test_rolling_update.py",
    "test_lost_servers.py",
    "test_accessibility.py",
    "test_over_servers.py",
    "test_weights.py",
    "test_demo.py",
    "test_gpu_check.py",
    "test_soak.py",
    "test_observability.py",
    "test_trainer.py",
    "test_kept_references.py",
    "test_live_search.py",
    "test_real.py",
    "test_distribution.py",
    "test_fabric.py",
    "test_random_loops.py",
    "test_resharding.py",
    "test_delays.py",
    "test_deployment.py",
    "test_together.py",
    "test_rewrite.py",
    "test_sharded_failures.py",
    "test_hugging_face.py",
    "test_lightning.py",
    "test_order_and_weights.py",
    "test_keys.py",
    "test_sync_plans.py",
    "test_compile.py",
    "test_policies.py",
    "test_forked_children.py",
    "test_absent_ranks.py",
    "test_lone_readers.py",
    "test_kept_gradients.py",
    "test_kept_optimizers.py",
    "test_report_sender.py",
    "test_exit.py",
)
_LONGEST_FIRST = {name: place for place, name in enumerate(_LONGEST)}

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
    """Put the files that take longest first, and have tests that race with the machine tried again.

    ``--reruns N`` decides for all tests instead.
    """
    items.sort(key=lambda item: _LONGEST_FIRST.get(item.path.name, len(_LONGEST)))
    for item in items:
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
