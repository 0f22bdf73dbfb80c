"""Weights in files: what a receiver has already is not sent again, and what is wrong in its files is."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.weight_sync import WeightReceiver, WeightSender
from pace_fabric.runtime.weight_sync.block_file import BlockFile
from pace_fabric.runtime.weight_sync.file_delivery import distribute_file
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Started

MB = 1 << 20
DATA = np.random.default_rng(0).bytes(5 * MB + 1)


class Receiver:
    """A receiver that keeps weights in a file."""

    def __init__(self, output: Path) -> None:
        self.file = BlockFile(output)
        self.process = WeightReceiver(token=TOKEN, make_taker=self.file.taker, missing=self.file.missing)
        self.place = ServerAddress(host=self.process.host, port=self.process.port, name=output.name)

    def close(self) -> None:
        """Stop it."""
        self.process.close()


def send(data: bytes, *receivers: Receiver) -> dict[str, int]:
    """Send weights to receivers; return the bytes that each got."""
    report = distribute_file([r.place for r in receivers], data, token=TOKEN, timeout_s=WITHIN_S)
    assert report.failed == {}
    for receiver in receivers:
        assert receiver.process.receive(WITHIN_S).data == len(data)
        assert receiver.file.output.read_bytes() == data
        assert not receiver.file.part.exists()
    return report.received_bytes


def test_only_blocks_that_are_missing_are_sent(tmp_path: Path) -> None:
    """Fresh hosts get all, hosts with another version what differs, and hosts with this one nothing."""
    receivers = [Receiver(tmp_path / name) for name in ("old", "new")]
    try:
        assert send(DATA, *receivers) == {"old": len(DATA), "new": len(DATA)}
        changed = bytearray(DATA)
        changed[3 * MB + 5] ^= 1
        assert send(bytes(changed), receivers[1]) == {"new": MB}
        assert send(bytes(changed), *receivers) == {"old": MB, "new": 0}
        assert send(bytes(changed[: 2 * MB]), *receivers) == {"old": 0, "new": 0}
        assert send(DATA, *receivers) == {"old": 3 * MB + 1, "new": 3 * MB + 1}
        assert send(b"", *receivers) == {"old": 0, "new": 0}
    finally:
        for receiver in receivers:
            receiver.close()


def test_what_is_wrong_in_a_begun_file_is_sent_again(tmp_path: Path) -> None:
    """A begun file that is longer, with a block that is wrong and one that is right."""
    receiver = Receiver(tmp_path / "weights")
    try:
        begun = bytearray(7 * MB)
        begun[: 2 * MB] = DATA[: 2 * MB]
        begun[MB + 7] ^= 1
        receiver.file.part.write_bytes(begun)
        assert send(DATA, receiver) == {"weights": len(DATA) - MB}
    finally:
        receiver.close()


def test_a_receiver_without_a_file_gets_all(tmp_path: Path) -> None:
    """Receivers that keep weights in memory, and senders that know of no blocks, go on as they did."""
    receiver = Receiver(tmp_path / "weights")
    with WeightReceiver(token=TOKEN) as other:
        place = ServerAddress(host=other.host, port=other.port, name="memory")
        try:
            report = distribute_file([place, receiver.place], DATA, token=TOKEN, timeout_s=WITHIN_S)
            assert report.failed == {}
            assert report.received_bytes == {"memory": len(DATA), "weights": len(DATA)}
            assert bytes(other.receive(WITHIN_S).data) == DATA
            with WeightSender([receiver.place], token=TOKEN) as sender:
                assert sender.distribute(DATA[::-1], timeout_s=WITHIN_S).failed == {}
            assert receiver.file.output.read_bytes() == DATA[::-1]
            nobody = ServerAddress(host="127.0.0.1", port=1, name="nobody")
            report = distribute_file([nobody, receiver.place], DATA, token=TOKEN, timeout_s=10.0)
            assert list(report.failed) == ["nobody"]
            assert receiver.file.output.read_bytes() == DATA
        finally:
            receiver.close()


@pytest.mark.slow
def test_a_killed_receiver_goes_on_where_it_was(tmp_path: Path) -> None:
    """100 MB, killed in the middle: less than 5 % of what was in the file comes twice."""
    weights = tmp_path / "weights.bin"
    data = np.random.default_rng(1).bytes(100 * MB)
    weights.write_bytes(data)
    for attempt in range(10):
        output = tmp_path / f"output{attempt}"
        part = output.with_name(f"{output.name}.part")
        victim = Started("receive", "--bind", "127.0.0.1:0", "--output", str(output))
        try:
            with Started("distribute", weights, "--to", victim.address, "--json") as sender:
                while sender.process.poll() is None and held(part) < 20 * MB:
                    time.sleep(0.0005)
                victim.process.send_signal(signal.SIGSTOP)
                before = held(part)
                victim.close()
                ended = sender.result(WITHIN_S)
        finally:
            victim.close()
        if 20 * MB <= before < 95 * MB:
            break
    assert 20 * MB <= before < 95 * MB
    assert ended.returncode == 1
    again = Started("receive", "--bind", "127.0.0.1:0", "--output", str(output), "--once")
    try:
        with Started("distribute", weights, "--to", again.address, "--json") as sender:
            done = sender.result(WITHIN_S)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert again.process.wait(WITHIN_S) == 0
    finally:
        again.close()
    assert report["received_bytes"][again.address] <= len(data) - before + 5 * MB
    assert output.read_bytes() == data


def held(path: Path) -> int:
    """Return how many bytes of a file are on the disk."""
    return path.stat().st_blocks * 512 if path.exists() else 0
