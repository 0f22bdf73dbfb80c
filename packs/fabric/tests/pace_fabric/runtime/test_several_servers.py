"""A model on several servers: one order for all, one version, and logs that give their parts of the model."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pace.errors import InvalidOptions
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.runtime.commit_log import LoggedCommit, replay, violations
from pace_fabric.runtime.connection import own_address_towards
from pace_fabric.runtime.daemon import HostDaemon
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.shards import shard_bytes, shard_key, shard_range, whole_of
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric, even_links


def test_shards_are_the_whole() -> None:
    """Ten numbers on three servers: 3, 3 and 4; keys say which."""
    assert [shard_range(10, shard, 3) for shard in range(3)] == [(0, 3), (3, 6), (6, 10)]
    assert [shard_bytes(40, shard, 3) for shard in range(3)] == [12, 12, 16]
    assert whole_of(shard_key("u/w-1", 2, 3)) == ("u/w-1", 2, 3)
    assert shard_key("u/w-1", 0, 1) == "u/w-1"
    assert whole_of("u/w#1") is None


def test_servers_commit_in_one_order(tmp_path: Path) -> None:
    """Six updates, then one more: each server has its part of every commit, and workers get the whole."""
    options = SchedulerOptions(delay_bound=7, servers=3, momentum=0.5, exact_momentum=True, tick_s=0.02)
    with Fabric(tmp_path, 6, options, without_server=True, numbers=10_001, state=even_links()) as fabric:
        workers = [fabric.client(number) for number in range(6)]
        tickets = [fabric.push(worker) for worker in workers]
        fabric.wait(lambda status: status["pending"] == 6)
        for server in fabric.servers:
            fabric.start(server)
        ends = [ticket.wait() for ticket in tickets]
        assert [end.outcome for end in ends] == ["committed"] * 6
        assert sorted(end.version or 0 for end in ends) == [1, 2, 3, 4, 5, 6]
        model = workers[0].get(at_least=6)
        assert model.version == 6
        assert fabric.push(workers[1], 6).wait().version == 7
        model = workers[2].get(at_least=7)
        logs = [fabric.log(server) for server in fabric.servers]
        orders = [
            [[member.id for member in line.members] for line in log if isinstance(line, LoggedCommit)]
            for log in logs
        ]
        assert orders[0] == orders[1] == orders[2]
        assert any(len(members) > 1 for members in orders[0])
        parts = []
        for shard, log in enumerate(logs):
            assert violations(log, 7) == []
            first, last = shard_range(10_001, shard, 3)

            def update(name: str, first: int = first, last: int = last) -> np.ndarray:
                return fabric.updates[name][first:last]

            parts.append(replay(fabric.first[first:last], log, update)[0])
        assert np.array_equal(np.concatenate(parts), model.weights)

        def received_as_planned(status: dict[str, Any]) -> bool:
            received = sum(status["hosts"][server]["received_bytes"] for server in fabric.servers)
            return bool(received == status["planned_server_bytes"])

        status = fabric.wait(received_as_planned)  # servers say it with their next sign of life
        assert status["servers"] == fabric.servers


def test_who_listens_everywhere_names_an_address_that_others_reach(tmp_path: Path) -> None:
    """A host on 0.0.0.0 registers with its address on the way to the scheduler."""
    with Fabric(tmp_path, 0, SchedulerOptions(tick_s=0.02)) as fabric:
        place = fabric.place("scheduler")
        daemon = HostDaemon("h0", place, bind=("0.0.0.0", 0), token=TOKEN)
        fabric.members["h0"] = daemon
        assert own_address_towards(place) == "127.0.0.1"
        assert daemon._registration().address == "127.0.0.1"


def test_a_server_of_another_split_is_refused(tmp_path: Path) -> None:
    """A whole model has no place beside halves; halves keep no replica."""
    with Fabric(tmp_path, 0, SchedulerOptions(servers=2), without_server=True) as fabric:
        fabric.options = SchedulerOptions()
        fabric.start("server")
        member: Any = fabric.members["server"]  # a daemon of this process
        deadline = time.monotonic() + WITHIN_S
        while member.refused is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "on 2 servers" in (member.refused or "")
    with pytest.raises(InvalidOptions, match="cannot have a replica"):
        SchedulerOptions(servers=2, divergence=DivergenceLimit(kind="updates", max=1))
