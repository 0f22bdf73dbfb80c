"""With late="pace" no update is late: who may begin, by hand, at random, and in a fabric of processes."""

import threading
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import LoggedCommit, violations
from pace_fabric.runtime.scheduling.admission import Admission
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from tests.pace_fabric.runtime.processes import Fabric


def test_who_may_begin() -> None:
    """A bound of 3: two begin, a third too; a fourth only once the oldest is committed."""
    admission = Admission(3)
    knows = {"version": 0, "planned_version": 0, "waiting": ()}
    assert admission.admit("a", "m/1", 2, **knows) == 2  # type: ignore[arg-type]  # keyword arguments by name
    admission.note("a", (0, 0), "m/1")
    assert admission.admit("b", "m/1", 4, **knows) == 1  # type: ignore[arg-type]
    admission.note("b", (), "m/0")  # another model than the one that was allowed: still under way
    assert admission.admit("c", "m/1", 1, **knows) == 0  # type: ignore[arg-type]
    admission.note("b", (0,), "m/1")
    assert admission.admit("c", "m/1", 1, **knows) == 0  # type: ignore[arg-type]
    # One of a's is committed: the others still count from version 0.
    admission.note("a", (0,))
    assert admission.admit("a", "m/2", 1, version=1, planned_version=1, waiting=()) == 0
    admission.note("a", ())
    admission.note("b", ())
    assert admission.admit("a", "m/3", 5, version=3, planned_version=3, waiting=()) == 3
    # Nobody computes, but three commits are planned that the model does not have yet.
    assert Admission(3).admit("b", "m/4", 1, version=0, planned_version=3, waiting=()) == 0
    assert Admission(None).admit("a", "m/1", 5, version=0, planned_version=0, waiting=()) is None


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(0, 10**6), max_size=80))
def test_no_order_of_events_makes_an_update_late(bound: int, workers: int, choices: list[int]) -> None:
    """Workers begin when they may and commit in any order: delays stay below the bound; some may begin."""
    admission = Admission(bound)
    computing: dict[str, int] = {}
    idle = [f"w{number}" for number in range(workers)]
    for version, choice in enumerate(choices):
        for worker in list(idle):
            if admission.admit(worker, "m/1", 1, version=version, planned_version=version, waiting=()) == 1:
                admission.note(worker, (version,), "m/1")
                computing[worker] = version
                idle.remove(worker)
        assert computing
        worker = sorted(computing)[choice % len(computing)]
        assert version - computing.pop(worker) < bound
        admission.note(worker, ())
        idle.append(worker)


def test_a_paced_fabric_drops_nothing(tmp_path: Path) -> None:
    """Three workers, one of them slow, and a bound of 2: all updates are committed; readers pass."""
    options = SchedulerOptions(delay_bound=2, late="pace", tick_s=0.02)
    with Fabric(tmp_path, 3, options) as fabric:
        outcomes: list[str] = []
        slow = threading.Event()

        def train(worker: FabricClient, *, waits: bool) -> None:
            version = 0
            for _ in range(4):
                model = worker.get(at_least=version)
                if waits:
                    slow.wait(0.3)
                end = worker.push(np.ones(1000, dtype=np.float32), model.version).wait()
                outcomes.append(end.outcome)
                version = end.version or 0

        workers = [fabric.client(number) for number in range(3)]
        threads = [
            threading.Thread(target=train, args=(worker,), kwargs={"waits": number == 0})
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        assert fabric.client(1, "reader").get(training=False).version >= 0
        for thread in threads:
            thread.join()
        assert outcomes == ["committed"] * 12
        lines = fabric.log()
        assert violations(lines, 2) == []
        assert sum(len(line.members) for line in lines if isinstance(line, LoggedCommit)) == 12
