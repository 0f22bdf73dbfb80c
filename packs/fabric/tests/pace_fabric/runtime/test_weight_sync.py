"""Weights from one sender to many hosts: every link carries them once, and a host that dies is left out."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pace.errors import InvalidUse
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, connect
from pace_fabric.runtime.weight_sync import WeightReceiver, WeightSender
from pace_fabric.runtime.weight_sync.buckets import BucketSource, WholeBytes, whole_hash
from tests.pace_fabric.runtime.processes import WITHIN_S, Started

DATA = np.random.default_rng(0).bytes(3_000_001)


def place(address: str, name: str) -> ServerAddress:
    """Return where a receiver listens."""
    host, _, port = address.rpartition(":")
    return ServerAddress(host=host, port=int(port), name=name)


def test_every_link_carries_the_weights_once() -> None:
    """Five hosts, two versions: the sender and all hosts but the last send each byte once."""
    receivers = [WeightReceiver(token="secret") for _ in range(5)]
    try:
        places = [place(r.address, f"host {n}") for n, r in enumerate(receivers)]
        with WeightSender(places, token="secret") as sender:
            for version in (1, 2):
                report = sender.distribute(DATA, version, timeout_s=WITHIN_S)
                assert report.failed == {}
                assert report.received_bytes == {p.name: len(DATA) for p in places}
                last = report.order[-1]
                expected = {name: len(DATA) * (name != last) for name in ["sender", *report.order]}
                assert report.sent_bytes == expected
                for receiver in receivers:
                    weights = receiver.receive(WITHIN_S)
                    assert (weights.version, bytes(weights.data)) == (version, DATA)
        with WeightSender(places, token="secret", direct=True) as sender:
            report = sender.distribute(DATA, 3, timeout_s=WITHIN_S)
            assert report.sent_bytes["sender"] == 5 * len(DATA)
    finally:
        for receiver in receivers:
            receiver.close()


def test_a_receiver_that_leaves_between_rounds_is_called_again() -> None:
    """What a connection said last, in an earlier round, is no failure of the next one."""
    with WeightReceiver(token="secret") as receiver, WeightReceiver(token="secret") as other:
        places = [place(receiver.address, "leaves"), place(other.address, "stays")]
        with WeightSender(places, token="secret") as sender:
            assert sender.distribute(b"first", 1, timeout_s=WITHIN_S).failed == {}
            receiver.finish()  # says goodbye to the sender, and listens on
            deadline = time.monotonic() + WITHIN_S
            while sender._notices.empty():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert sender.distribute(b"second", 2, timeout_s=WITHIN_S).failed == {}
        for each in (receiver, other):
            assert [bytes(each.receive(WITHIN_S).data) for _ in range(2)] == [b"first", b"second"]


def test_a_version_follows_one_that_was_given_up_on_its_way() -> None:
    """Most of two hosts' first bucket is not yet written when the second is refused: both take version 2."""
    bucket = memoryview(DATA)[:2_000_000]
    sizes = (len(bucket), len(bucket))

    def parts(number: int) -> Iterator[memoryview]:
        yield bucket
        if number == 1:
            raise InvalidUse("changed while it was sent")

    given_up = BucketSource(sizes=sizes, parts=parts, layout="", layout_sha256=whole_hash(sizes))
    with WeightReceiver(token="secret") as receiver, WeightReceiver(token="secret") as other:
        places = [place(receiver.address, "one"), place(other.address, "two")]
        with WeightSender(places, token="secret", bytes_per_s=4e6) as sender:
            for version in (1, 3):
                with pytest.raises(InvalidUse, match="changed while it was sent"):
                    sender.distribute_buckets(given_up, version, timeout_s=WITHIN_S)
                assert sender.distribute(DATA, version + 1, timeout_s=WITHIN_S).failed == {}
        for each in (receiver, other):
            assert [each.receive(WITHIN_S).version for _ in range(2)] == [2, 4]


def test_others_do_not_wait_long_for_a_host_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was called once is called for seconds only; those that are there get every version."""
    called: list[tuple[str, float]] = []

    def calling(place: ServerAddress, *, within_s: float, **options: Any) -> FabricLink:
        called.append((place.name, within_s))
        return connect(place, within_s=within_s, **options)

    monkeypatch.setattr("pace_fabric.runtime.weight_sync.sender.connect", calling)
    with WeightReceiver(token="secret") as receiver, WeightReceiver(token="secret") as leaves:
        places = [place(receiver.address, "stays"), place(leaves.address, "leaves")]
        with WeightSender(places, token="secret") as sender:
            assert sender.distribute(DATA, 1, timeout_s=WITHIN_S).failed == {}
            leaves.close()
            for version in (2, 3):
                assert set(sender.distribute(DATA, version, timeout_s=WITHIN_S).failed) == {"leaves"}
        assert [receiver.receive(WITHIN_S).version for _ in range(3)] == [1, 2, 3]
    again = [within_s for name, within_s in called[2:] if name == "leaves"]
    assert again
    assert max(again) <= 3.0 < min(within_s for _, within_s in called[:2])


@pytest.mark.slow
def test_the_end_of_a_receiver_waits_for_the_bucket_in_work() -> None:
    """A thread that is still in torch's code when the interpreter ends would abort the process."""
    begun, ended = threading.Event(), threading.Event()

    class Slow(WholeBytes):
        def take(self, bucket: int, data: bytearray | memoryview, begin: int, end: int) -> None:
            begun.set()
            time.sleep(0.5)
            super().take(bucket, data, begin, end)
            ended.set()

    receiver = WeightReceiver(token="secret", make_taker=Slow)
    with WeightSender([place(receiver.address, "host")], token="secret") as sender:
        sending = threading.Thread(target=sender.distribute, args=(DATA, 1), kwargs={"timeout_s": WITHIN_S})
        sending.start()
        assert begun.wait(WITHIN_S)
        receiver.close()
        assert ended.is_set()
        sending.join()


def test_a_receiver_that_dies_is_left_out(tmp_path: Path) -> None:
    """A host in the middle of the chain stops and is killed: all others have the weights."""
    receivers = [WeightReceiver(token="secret") for _ in range(2)]
    victim = Started("receive", "--bind", "127.0.0.1:0", "--output", str(tmp_path / "weights"))
    try:
        places = [
            place(receivers[0].address, "first"),
            place(victim.address, "victim"),
            place(receivers[1].address, "last"),
        ]
        with WeightSender(places, token="secret") as sender:
            assert sender.distribute(b"small", 1, timeout_s=WITHIN_S).failed == {}
            victim.process.send_signal(signal.SIGSTOP)
            killer = subprocess.Popen([sys.executable, "-c", f"import os; os.kill({victim.process.pid}, 9)"])
            report = sender.distribute(DATA, 2, timeout_s=WITHIN_S)
            killer.wait()
            assert list(report.failed) == ["victim"]
        for receiver in receivers:
            assert [receiver.receive(WITHIN_S).version for _ in range(2)] == [1, 2]
    finally:
        victim.close()
        for receiver in receivers:
            receiver.close()


@pytest.mark.slow
def test_weights_by_command(tmp_path: Path) -> None:
    """``pace fabric receive`` twice and ``distribute`` once: files are equal, the report adds up."""
    source = tmp_path / "weights.bin"
    source.write_bytes(DATA)
    outputs = [tmp_path / f"received{n}" for n in range(2)]
    receivers = [
        Started("receive", "--bind", "127.0.0.1:0", "--output", str(output), "--once") for output in outputs
    ]
    try:
        to = ",".join(receiver.address for receiver in receivers)
        with Started("distribute", source, "--to", to, "--json") as sender:
            done = sender.result(WITHIN_S)
        assert done.returncode == 0, done.stderr
        assert f'"sender": {len(DATA)}' in done.stdout
        for receiver, output in zip(receivers, outputs, strict=True):
            assert receiver.process.wait(WITHIN_S) == 0
            assert output.read_bytes() == DATA
    finally:
        for receiver in receivers:
            receiver.close()
