"""Processes of a fabric die: nothing hangs, no bound is broken, and the model is what the log says."""

import signal
from pathlib import Path

import numpy as np
import pytest

from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.runtime.commit_log import LoggedCommit, LogHead, violations
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.update_records import worker_and_number
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric, Started
from tests.runtime.programs import script

pytestmark = pytest.mark.races_with_machine(
    reason="processes are ended while others send, and one that stands still for longer counts as dead"
)


def ids(lines: list[LogHead | LoggedCommit]) -> list[str]:
    """Return the committed updates, in order."""
    return [member.id for line in lines if isinstance(line, LoggedCommit) for member in line.members]


@pytest.mark.slow
def test_an_aggregator_dies_and_its_members_are_sent_again(tmp_path: Path) -> None:
    """What the others pushed is committed all the same; what only the dead host had is not."""
    options = SchedulerOptions(delay_bound=9, aggregators=("h0",), tick_s=0.02)
    with Fabric(tmp_path, 5, options, killable=("h0",), without_server=True) as fabric:
        workers = [fabric.client(number) for number in range(5)]
        tickets = [fabric.push(worker) for worker in workers]
        fabric.wait(lambda status: status["pending"] == 5)
        stopped = fabric.members["h0"]
        assert isinstance(stopped, Started)
        stopped.process.send_signal(signal.SIGSTOP)
        fabric.start("server")
        fabric.wait(lambda status: status["planned"] > 0)
        fabric.kill("h0")
        ends = [ticket.wait() for ticket in tickets]
        assert [end.outcome for end in ends[1:]] == ["committed"] * 4
        assert ends[0].outcome == "failed"
        status = fabric.wait(lambda status: status["committed"] == 4)
        assert status["broken_groups"] > 0
        assert sorted(ids(fabric.log())) == sorted(ticket.update for ticket in tickets[1:])
        assert violations(fabric.log(), 9) == []
        assert np.array_equal(workers[1].get(at_least=4).weights, fabric.replayed(fabric.log()))


_PUSH = """
import sys, time
import numpy as np
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.client import FabricClient
client = FabricClient(
    ServerAddress(host="127.0.0.1", port=int(sys.argv[1]), name="daemon"), worker="gone", token=sys.argv[2]
)
client.push(np.ones(1000, dtype=np.float32), 0)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_worker_dies_before_its_update_is_committed(tmp_path: Path) -> None:
    """The daemon has the update: it is committed, and others go on."""
    with Fabric(tmp_path, 2, SchedulerOptions(tick_s=0.02), without_server=True) as fabric:
        with script(_PUSH, fabric.place("h0").port, TOKEN):
            fabric.wait(lambda status: status["pending"] == 1)
        fabric.start("server")
        other = fabric.client(1)
        assert fabric.push(other).wait().outcome == "committed"
        model = other.get(at_least=2)
        committed = {worker_and_number(update): update for update in ids(fabric.log())}
        assert sorted(committed) == [("gone", 1), ("w1", 1)]
        fabric.updates[committed["gone", 1]] = np.ones(1000, dtype=np.float32)
        assert np.array_equal(model.weights, fabric.replayed(fabric.log()))


@pytest.mark.slow
def test_a_worker_that_starts_again_under_its_name_loses_nothing(tmp_path: Path) -> None:
    """Its updates are new ones: on its host, on another, and at the same time as those of its namesake."""
    with Fabric(tmp_path, 2, SchedulerOptions(delay_bound=20, tick_s=0.02)) as fabric:
        first = fabric.client(0, "worker0")
        ends = [fabric.push(first).wait() for _ in range(3)]
        first.close()
        for host in (0, 1):
            again = fabric.client(host, "worker0")
            ends += [fabric.push(again, again.get().version).wait() for _ in range(3)]
        assert [(end.outcome, end.version) for end in ends] == [("committed", n) for n in range(1, 10)]
        model = fabric.clients[-1].get(at_least=9)
        assert sorted(ids(fabric.log())) == sorted(fabric.updates)
        total = fabric.first.astype(np.float64) + sum(fabric.updates.values())
        assert np.allclose(model.weights, total, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("momentum", "exact", "kind", "most"),
    [(0.5, True, "norm", 150.0), (0.5, False, "norm", 150.0), (0.0, False, "updates", 2.0)],
)
def test_the_server_dies_and_the_replica_is_within_its_bound(
    tmp_path: Path, momentum: float, exact: bool, kind: str, most: float
) -> None:
    """The models differ by no more than the bound; what the server had committed is committed again."""
    limit = DivergenceLimit.model_validate({"kind": kind, "max": most})
    options = SchedulerOptions(
        delay_bound=20,
        momentum=momentum,
        exact_momentum=exact,
        divergence=limit,
        tick_s=0.02,
        failover_s=0.1,
    )
    with Fabric(tmp_path, 3, options, killable=("server",), replica=True) as fabric:
        workers = [fabric.client(number) for number in range(3)]
        version = 0
        for _ in range(3):
            tickets = [fabric.push(worker, version) for worker in workers]
            version = max(ticket.wait().version or 0 for ticket in tickets)
        assert version == 9
        late = [fabric.push(worker, version) for worker in workers]
        fabric.kill("server")
        assert [ticket.wait().outcome for ticket in late] == ["committed"] * 3
        after = [fabric.push(worker, version) for worker in workers]
        assert [ticket.wait().outcome for ticket in after] == ["committed"] * 3
        status = fabric.wait(lambda status: status["version"] == 15)
        assert status["promoted"]
        assert status["greatest_lead"] <= most
        final = workers[0].get(at_least=15)
        first, second = fabric.log("server"), fabric.log("replica")
        assert violations(first, 20) == []
        assert violations(second, 20) == []
        place = next(n for n, line in enumerate(second) if line.event == "promote")
        distance = float(np.linalg.norm(fabric.replayed(first) - fabric.replayed(second[:place])))
        had = set(ids(second[:place]))
        if kind == "norm":
            assert distance <= most
        else:
            assert len([update for update in ids(first) if update not in had]) <= most
        assert sorted(ids(second)) == sorted(fabric.updates)
        assert np.array_equal(final.weights, fabric.replayed(second))


@pytest.mark.slow
def test_a_scheduler_that_is_started_again_goes_on(tmp_path: Path) -> None:
    """What waited is committed once, with the delays that it has; models can be had again."""
    options = SchedulerOptions(delay_bound=9, tick_s=0.02)
    with Fabric(tmp_path, 2, options, killable=("scheduler",)) as fabric:
        workers = [fabric.client(0), fabric.client(1)]
        assert [fabric.push(worker).wait().outcome for worker in workers] == ["committed"] * 2
        place = fabric.place("scheduler")
        fabric.kill("scheduler")
        tickets = [fabric.push(worker, 1) for worker in workers]
        fabric.start_scheduler((place.host, place.port))
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 2
        assert workers[0].get(at_least=4).version == 4
        assert len(ids(fabric.log())) == len(set(ids(fabric.log()))) == 4
        assert violations(fabric.log(), 9) == []


def test_a_server_that_dies_alone_is_named_to_all(tmp_path: Path) -> None:
    """Without a replica, what waits fails with the reason."""
    options = SchedulerOptions(tick_s=0.02, failover_s=0.0)
    with Fabric(tmp_path, 1, options) as fabric:
        worker = fabric.client(0)
        assert fabric.push(worker).wait(WITHIN_S).outcome == "committed"
        fabric.members.pop("server").close()
        fabric.wait(lambda status: status["server"] is None)
        ticket = fabric.push(worker, 1)
        end = ticket.wait()
        assert end.outcome == "failed"
        assert "server is gone" in end.reason


@pytest.mark.slow
@pytest.mark.parametrize(("state_s", "version"), [(0.0, 3), (600.0, 0)])
def test_a_server_goes_on_from_its_state_without_a_replica(
    tmp_path: Path, state_s: float, version: int
) -> None:
    """If each commit was saved, none is lost; else those since the last save are, and the log says so."""
    options = SchedulerOptions(delay_bound=9, tick_s=0.02, failover_s=0.0, momentum=0.5)
    with Fabric(tmp_path, 1, options, killable=("server",), state_s=state_s) as fabric:
        worker = fabric.client(0)
        assert [fabric.push(worker).wait().outcome for _ in range(3)] == ["committed"] * 3
        fabric.kill("server")
        fabric.wait(lambda status: status["server"] is None)
        fabric.start("server")
        fabric.wait(lambda status: status["server"] is not None)
        assert fabric.status()["version"] == version
        assert fabric.push(worker, version).wait().outcome == "committed"
        model = worker.get(at_least=version + 1, training=False)
        assert model.version == version + 1
        log = fabric.log()
        assert [line.event for line in log if isinstance(line, LogHead)] == [
            "begin",
            "restore" if version else "begin",
        ]
        assert np.array_equal(model.weights, fabric.replayed(log))
        assert violations(log, 9) == []
