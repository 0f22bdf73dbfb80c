"""A fabric of real processes: what is pushed is committed in order, and the log says what was done."""

from pathlib import Path

import numpy as np
import pytest

from pace.errors import CommunicationFailed
from pace.runtime.fabric.client import FabricClient
from pace.runtime.fabric.commit_log import LoggedCommit, replay, violations
from pace.runtime.fabric.scheduler import SchedulerOptions
from tests.runtime.fabric.processes import Fabric


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
        model, _ = replay(fabric.first, lines, fabric.updates.__getitem__)
        assert np.array_equal(model, final.weights)
        assert sum(len(line.members) for line in lines if isinstance(line, LoggedCommit)) == 6
        status = fabric.status()
        assert status["planned_server_bytes"] == status["hosts"]["server"]["received_bytes"]
        wire = status["hosts"]["server"]["received_wire_bytes"]
        assert wire == pytest.approx(status["planned_server_bytes"], rel=0.05)
        with pytest.raises(CommunicationFailed, match="does not know the token"):
            FabricClient(fabric.place("h0"), token="other", within_s=60.0)
