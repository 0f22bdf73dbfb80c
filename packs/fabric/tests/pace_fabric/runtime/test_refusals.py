"""What a fabric cannot do ends in one clear message, and not in silence."""

import socket
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pace.errors import CommunicationFailed
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import LoggedCommit
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.sparse_update import SparseUpdate
from pace_fabric.runtime.weight_sync import WeightReceiver, WeightSender
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric, Started


def test_an_update_of_another_size_fails_with_both_sizes(tmp_path: Path) -> None:
    """Dense or sparse; right ones that wait beside it are committed."""
    with Fabric(tmp_path, 1, SchedulerOptions(delay_bound=8, tick_s=0.02)) as fabric:
        worker = fabric.client(0)
        right = fabric.push(worker)
        short = worker.push(np.ones(999, dtype=np.float32), 0)
        wide = SparseUpdate.of_rows(np.array([3]), np.ones((1, 4), dtype=np.float32), numbers=1004)
        sparse = worker.push(wide, 0)
        assert right.wait().outcome == "committed"
        ends = [short.wait(), sparse.wait()]
        assert [end.outcome for end in ends] == ["failed", "failed"]
        assert ends[0].reason == "the update has 999 numbers, but the model has 1,000"
        assert ends[1].reason == "the update has 1,004 numbers, but the model has 1,000"


def test_late_updates_are_committed_with_less_weight(tmp_path: Path) -> None:
    """With "downweight" by 1 / sqrt(1 + positions late), and none is dropped."""
    options = SchedulerOptions(delay_bound=3, late="downweight", tick_s=0.02)
    with Fabric(tmp_path, 1, options) as fabric:
        worker = fabric.client(0)
        ends = [worker.push(np.ones(1000, dtype=np.float32), 0).wait() for _ in range(5)]
        assert [(end.outcome, end.delay) for end in ends] == [("committed", delay) for delay in range(5)]
        factors = [m.factor for line in fabric.log() if isinstance(line, LoggedCommit) for m in line.members]
        assert factors == pytest.approx([1, 1, 1, 2**-0.5, 3**-0.5])
        model = worker.get(at_least=5, training=False)
        assert np.allclose(model.weights - fabric.first, sum(factors), atol=1e-5)


@pytest.mark.slow
def test_a_replica_without_a_bound_is_refused(tmp_path: Path) -> None:
    """The process ends with the reason and what to do, instead of replicating nothing."""
    with Fabric(tmp_path, 0, SchedulerOptions()) as fabric:
        place = fabric.place("scheduler")
        command = ["serve", "--replica", "--name", "replica", "--model", str(tmp_path / "model.npy")]
        command += ["--scheduler", f"{place.host}:{place.port}", "--bind", "127.0.0.1:0"]
        (tmp_path / "token").write_text(TOKEN)
        command += ["--token-file", str(tmp_path / "token")]
        with Started(*command) as program:
            ended = program.result(WITHIN_S)
        assert ended.returncode == 3
        assert "start it with --divergence or --divergence-updates" in ended.stderr


def _silent(port: socket.socket) -> ServerAddress:
    return ServerAddress(host="127.0.0.1", port=port.getsockname()[1], name="silent")


def test_a_caller_in_the_clear_learns_that_tls_may_be_spoken() -> None:
    """A server that waits for TLS says nothing first."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as port,
        pytest.raises(CommunicationFailed, match=r"did not begin the handshake .* if it uses TLS"),
    ):
        FabricClient(_silent(port), within_s=0.2, silence_s=0.2)


def test_hosts_that_say_nothing_leave_time_for_the_others() -> None:
    """They are called at the same time, for at most half of what there is, and named in the report."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as one,
        closing(socket.create_server(("127.0.0.1", 0))) as other,
        WeightReceiver() as receiver,
    ):
        places = [
            ServerAddress(host="127.0.0.1", port=port.getsockname()[1], name=name)
            for name, port in (("one", one), ("other", other))
        ]
        places.append(ServerAddress(host=receiver.host, port=receiver.port, name="there"))
        with WeightSender(places) as sender:
            report = sender.distribute(b"weights", timeout_s=6.0)
        assert sorted(report.failed) == ["one", "other"]
        assert bytes(receiver.receive(WITHIN_S).data) == b"weights"
