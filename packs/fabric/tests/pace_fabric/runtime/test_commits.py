"""A fabric of real processes: what is pushed is committed in order, and the log says what was done."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pace.errors import CommunicationFailed, InvalidUse
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import LoggedCommit, LogHead, replay, violations
from pace_fabric.runtime.held_model import HeldModel, ModelState, SavedModel
from pace_fabric.runtime.scheduling.link_rates import OracleState
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from tests.pace_fabric.runtime.processes import Fabric, even_links


@pytest.mark.slow
def test_updates_are_committed_and_the_log_replays_bit_by_bit(tmp_path: Path) -> None:
    """Each ticket ends, no bound is broken, the model is what the log gives, bytes are as planned."""
    rng = np.random.default_rng(1)
    options = SchedulerOptions(delay_bound=4, momentum=0.5, tick_s=0.02)
    killable = ("scheduler", "server", "h0", "h1")
    with Fabric(tmp_path, 2, options, killable=killable, numbers=50_000) as fabric:
        workers = [fabric.client(0), fabric.client(1)]
        versions = []
        for _ in range(3):
            models = [worker.get() for worker in workers]
            tickets = []
            for worker, model in zip(workers, models, strict=True):
                update = rng.normal(size=50_000).astype(np.float32)
                tickets.append(worker.push(update, model.version))
                fabric.updates[tickets[-1].update] = update
            ends = [ticket.wait() for ticket in tickets]
            assert [end.outcome for end in ends] == ["committed"] * 2
            versions += [end.version for end in ends]
        assert sorted(version or 0 for version in versions) == [1, 2, 3, 4, 5, 6]
        final = workers[0].get(at_least=6)
        assert final.version == 6
        lines = fabric.log()
        assert violations(lines, 4) == []
        again, _ = replay(fabric.first, lines, fabric.updates.__getitem__)
        assert np.array_equal(again, final.weights)
        assert sum(len(line.members) for line in lines if isinstance(line, LoggedCommit)) == 6
        status = fabric.status()
        assert status["planned_server_bytes"] == status["hosts"]["server"]["received_bytes"]
        wire = status["hosts"]["server"]["received_wire_bytes"]
        assert wire == pytest.approx(status["planned_server_bytes"], rel=0.05)
        with pytest.raises(CommunicationFailed, match="does not know the token"):
            FabricClient(fabric.place("h0"), token="other", within_s=60.0)


def test_a_batch_is_added_on_the_way(tmp_path: Path) -> None:
    """Six updates that wait for a server reach it as fewer sums, with the bytes that were planned."""
    options = SchedulerOptions(delay_bound=7, tick_s=0.02)
    with Fabric(tmp_path, 6, options, without_server=True, numbers=20_000, state=even_links()) as fabric:
        tickets = [fabric.push(fabric.client(number)) for number in range(6)]
        fabric.wait(lambda status: status["pending"] == 6)
        fabric.start("server")
        ends = [ticket.wait() for ticket in tickets]
        assert [end.outcome for end in ends] == ["committed"] * 6
        assert sorted(end.delay or 0 for end in ends) == [0, 1, 2, 3, 4, 5]
        lines = fabric.log()
        commits = [line for line in lines if isinstance(line, LoggedCommit)]
        assert len(commits) < 6
        assert any(len(line.members) > 1 and line.scaled for line in commits)
        assert violations(lines, 7) == []
        model = fabric.clients[0].get(at_least=6)
        assert np.array_equal(fabric.replayed(lines), model.weights)
        status = fabric.status()
        assert status["hosts"]["server"]["received_bytes"] == status["planned_server_bytes"]
        assert status["planned_server_bytes"] == len(commits) * 80_000


def test_sums_make_every_step_of_momentum(tmp_path: Path) -> None:
    """With exact momentum a batch that is summed on the way ends where its updates one by one would.

    The log replays bit by bit, and server and replica, which sum differently, agree but for rounding.
    """
    options = SchedulerOptions(
        momentum=0.9,
        exact_momentum=True,
        divergence=DivergenceLimit(kind="updates", max=5),
        tick_s=0.02,
    )
    with Fabric(
        tmp_path, 6, options, without_server=True, replica=True, numbers=2_000, state=even_links()
    ) as fabric:
        tickets = [fabric.push(fabric.client(number)) for number in range(6)]
        fabric.wait(lambda status: status["pending"] == 6)
        fabric.start("server")
        ends = [ticket.wait() for ticket in tickets]
        assert [end.outcome for end in ends] == ["committed"] * 6
        lines = fabric.log()
        commits = [line for line in lines if isinstance(line, LoggedCommit)]
        assert any(line.exact and len(line.members) > 1 for line in commits)
        served = fabric.clients[0].get(at_least=6).weights
        assert np.array_equal(fabric.replayed(lines), served)
        weights, history = fabric.first.astype(np.float64), np.zeros(2_000)
        for member in (member for line in commits for member in line.members):
            history = fabric.updates[member.id] + 0.9 * history
            weights += history
        assert np.allclose(served, weights, atol=1e-4)
        fabric.wait(lambda status: status["replica_applied"] == 6)
        assert np.allclose(fabric.replayed(fabric.log("replica")), weights, atol=1e-4)
        assert fabric.status()["greatest_lead"] <= 5


def test_what_would_be_late_is_dropped_with_its_reason(tmp_path: Path) -> None:
    """Three updates for two positions: one is dropped, and its ticket names the others."""
    options = SchedulerOptions(delay_bound=2, tick_s=0.02)
    with Fabric(tmp_path, 3, options, without_server=True) as fabric:
        tickets = [fabric.push(fabric.client(number)) for number in range(3)]
        fabric.wait(lambda status: status["pending"] == 3)
        fabric.start("server")
        ends = [ticket.wait() for ticket in tickets]
        assert sorted(end.outcome for end in ends) == ["committed", "committed", "dropped"]
        dropped = next(end for end in ends if end.outcome == "dropped")
        assert dropped.reason == "infeasible"
        kept = {t.update for t, end in zip(tickets, ends, strict=True) if end.outcome == "committed"}
        assert set(dropped.witness) == kept
        assert violations(fabric.log(), 2) == []


def test_a_weighted_mean_is_one_step(tmp_path: Path) -> None:
    """With merge="weighted-mean" a commit adds the mean of its members, with their weights."""
    options = SchedulerOptions(merge="weighted-mean", tick_s=0.02)
    with Fabric(tmp_path, 4, options, without_server=True) as fabric:
        tickets = [fabric.push(fabric.client(n), weight=float(n + 1)) for n in range(4)]
        fabric.wait(lambda status: status["pending"] == 4)
        fabric.start("server")
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 4
        lines = fabric.log()
        for line in lines:
            if isinstance(line, LoggedCommit):
                assert sum(member.factor for member in line.members) == pytest.approx(1.0)
        model = fabric.clients[0].get(at_least=4)
        assert np.array_equal(fabric.replayed(lines), model.weights)


def test_all_members_get_the_same_mean(tmp_path: Path) -> None:
    """all_reduce gives the weighted mean, bit-equal on all members, twice in a row."""
    with Fabric(tmp_path, 4, SchedulerOptions(tick_s=0.02)) as fabric:
        workers = [fabric.client(number) for number in range(4)]
        rng = np.random.default_rng(3)
        with ThreadPoolExecutor(4) as threads:
            for _ in range(2):
                rows = rng.normal(size=(4, 500)).astype(np.float32)
                calls = [
                    threads.submit(worker.all_reduce, row, members=4, weight=float(number + 1))
                    for number, (worker, row) in enumerate(zip(workers, rows, strict=True))
                ]
                found = [call.result() for call in calls]
                assert all(np.array_equal(found[0], other) for other in found[1:])
                expected = np.average(rows.astype(np.float64), axis=0, weights=[1, 2, 3, 4])
                assert np.allclose(found[0], expected, atol=1e-6)


def test_members_that_disagree_get_an_error(tmp_path: Path) -> None:
    """A round of two sizes ends for both with the reason."""
    with Fabric(tmp_path, 2, SchedulerOptions(tick_s=0.02)) as fabric, ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(fabric.client(n).all_reduce, np.ones(3 + n, dtype=np.float32), members=2)
            for n in range(2)
        ]
        for call in calls:
            with pytest.raises(CommunicationFailed, match="numbers, others"):
                call.result()


def test_an_oracle_that_is_wrong_changes_no_result(tmp_path: Path) -> None:
    """Rates that are late and wrong by far: all is committed within its bound; the log names the oracle."""
    names = ("h0", "h1", "h2", "server")
    network = FabricNetwork.model_validate(
        {
            "hosts": [{"name": n, "up_bytes_per_s": 1e3, "down_bytes_per_s": 1e15} for n in names],
            "server": "server",
        }
    )
    state = OracleState(network, lag_s=1000.0)
    with Fabric(tmp_path, 3, SchedulerOptions(delay_bound=9, tick_s=0.02), state=state) as fabric:
        workers = [fabric.client(number) for number in range(3)]
        for version in (0, 3):
            tickets = [fabric.push(worker, version) for worker in workers]
            assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 3
        lines = fabric.log()
        assert violations(lines, 9) == []
        head = lines[0]
        assert isinstance(head, LogHead)
        assert head.network_state == "oracle, 1000 s late"


def test_a_version_that_nobody_has_pushed_yet_is_waited_for(tmp_path: Path) -> None:
    """A synchronous worker that wants both updates of a round does not get a model with one of them."""
    with Fabric(tmp_path, 2, SchedulerOptions(tick_s=0.02)) as fabric, ThreadPoolExecutor(1) as pool:
        first, second = fabric.client(0), fabric.client(1)
        assert fabric.push(first).wait().version == 1
        waiting = pool.submit(first.get, at_least=2)
        assert second.get(at_least=1).version == 1
        assert not waiting.done()
        assert fabric.push(second, 1).wait().version == 2
        assert waiting.result().version == 2


def test_a_state_that_cannot_be_read_or_written_is_told_of(tmp_path: Path) -> None:
    """A model of another size and a damaged file are refused; a full disk does not end training."""
    saved = SavedModel(tmp_path / "state", every_s=0.0)
    saved.save(ModelState(2, np.ones(4, np.float32), np.zeros(4, np.float32), {"a.0": 1, "b.0": 2}))
    held = HeldModel(np.zeros(4, np.float32), saved=saved)
    assert (held.version, held.weights.tolist(), dict(held.recent)) == (2, [1.0] * 4, {"a.0": 1, "b.0": 2})
    with pytest.raises(InvalidUse, match="the model has 5"):
        HeldModel(np.zeros(5, np.float32), saved=saved)
    saved.file.write_bytes(saved.file.read_bytes()[:100])
    with pytest.raises(InvalidUse, match="no state of a server"):
        HeldModel(np.zeros(4, np.float32), saved=saved)
    missing = HeldModel(np.zeros(4, np.float32), saved=SavedModel(tmp_path / "no/state", every_s=0.0))
    missing.adopt(held.snapshot(whole=True)[0])
    missing.close()
    assert missing.version == 2
