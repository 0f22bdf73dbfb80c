"""Models of real sizes over links without a limit, as workers and the daemon of their host have."""

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import Incoming
from pace_fabric.runtime.messages import TransferIntro
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.weight_sync import WeightSender
from tests.pace_fabric.runtime.processes import WITHIN_S, Fabric, Started

NUMBERS = 25_000_000


@pytest.mark.slow
def test_a_model_of_100_mb_is_had_and_updated(tmp_path: Path) -> None:
    """A worker gets the model, pushes an update as large, and gets the sum, over loopback at full speed."""
    killable = ("scheduler", "server", "h0")
    with Fabric(tmp_path, 1, SchedulerOptions(delay_bound=8), killable=killable, numbers=NUMBERS) as fabric:
        worker = fabric.client(0)
        model = worker.get()
        assert np.array_equal(model.weights, fabric.first)
        end = worker.push(np.ones(NUMBERS, dtype=np.float32), model.version).wait()
        assert (end.outcome, end.version) == ("committed", 1)
        assert np.array_equal(worker.get(at_least=1).weights, fabric.first + np.float32(1.0))


@pytest.mark.slow
def test_weights_of_100_mb_are_written_before_a_receiver_stops(tmp_path: Path) -> None:
    """Two receivers in a chain, stopped as soon as the sender is done: both have written the weights."""
    weights = np.random.default_rng(0).bytes(4 * NUMBERS)
    outputs = [tmp_path / "first", tmp_path / "second"]
    receivers = [Started("receive", "--bind", "127.0.0.1:0", "--output", str(output)) for output in outputs]
    try:
        places = []
        for receiver in receivers:
            host, _, port = receiver.address.rpartition(":")
            places.append(ServerAddress(host=host, port=int(port), name=receiver.address))
        with WeightSender(places, token="secret") as sender:
            report = sender.distribute(weights, timeout_s=WITHIN_S)
        for receiver in receivers:
            receiver.process.send_signal(signal.SIGTERM)
        assert report.failed == {}
        assert [receiver.process.wait(WITHIN_S) for receiver in receivers] == [0, 0]
        assert all(output.read_bytes() == weights for output in outputs)
    finally:
        for receiver in receivers:
            receiver.close()


def test_a_tensor_takes_no_memory_before_its_bytes_arrive() -> None:
    """Otherwise hosts of a chain clear a gigabyte one after the other, half a second each."""
    process = psutil.Process()
    before = process.memory_info().rss
    incoming = Incoming(TransferIntro(transfer=1, key="weights", size_bytes=2**30))
    assert len(incoming.data) == 2**30
    assert process.memory_info().rss - before < 2**26
