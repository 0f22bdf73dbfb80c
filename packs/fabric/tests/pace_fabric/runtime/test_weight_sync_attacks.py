"""Attacks on weight distribution: broken chains, two senders, small credits, and versions that cannot be.

Each of these once lost weights, mixed two versions, or waited until the time-out.
"""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pace.errors import InvalidUse
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.messages import RelayOrder
from pace_fabric.runtime.weight_sync import WeightReceiver, WeightSender
from pace_fabric.runtime.weight_sync.block_file import BlockFile, BlockLayout, blocks_of
from pace_fabric.runtime.weight_sync.buckets import BucketSource, whole_hash
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Started

MB = 1 << 20
DATA = np.random.default_rng(1).bytes(40 * MB)


def place(address: str, name: str) -> ServerAddress:
    """Return where a receiver listens."""
    host, _, port = address.rpartition(":")
    return ServerAddress(host=host, port=int(port), name=name)


class Gate:
    """Forwards connections; the first one is free, and later ones carry only so many bytes to the host."""

    def __init__(self, host: str, port: int, most_bytes: int) -> None:
        self._target, self._most_bytes = (host, port), most_bytes
        self._open: list[socket.socket] = [socket.create_server(("127.0.0.1", 0))]
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._open[0].getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        """End all connections, and wait for what carries them."""
        for each in self._open:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        allowed = 1 << 62
        with contextlib.suppress(OSError):
            while True:
                caller = self._open[0].accept()[0]
                self._open.append(caller)
                if allowed:
                    host = socket.create_connection(self._target)
                    self._open.append(host)
                    self._start(self._carry, caller, host, allowed)
                    self._start(self._carry, host, caller, 1 << 62)
                else:
                    _shut(caller)
                allowed = self._most_bytes

    def _carry(self, source: socket.socket, target: socket.socket, most: int) -> None:
        with contextlib.suppress(OSError):
            while most > 0 and (data := source.recv(min(most, 65536))):
                target.sendall(data)
                most -= len(data)
        for each in (source, target):
            _shut(each)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("most_bytes", [0, 10_000, 9_000_000])
def test_hosts_that_cannot_reach_each_other_are_served_another_way(tmp_path: Path, most_bytes: int) -> None:
    """The sender reaches both hosts; the way from the first to the second ends before, at and after a block.

    Nobody waits for the time-out, and both processes have all 40 MB.
    """
    outputs = [tmp_path / name for name in ("first", "second")]
    receivers = [Started("receive", "--bind", "127.0.0.1:0", "--output", str(output)) for output in outputs]
    host, _, port = receivers[1].address.rpartition(":")
    gate = Gate(host, int(port), most_bytes)
    try:
        places = [place(receivers[0].address, "first"), place(gate.address, "second")]
        bucket = len(DATA) // 4
        source = BucketSource(
            sizes=(bucket,) * 4,
            parts=lambda number: [memoryview(DATA)[number * bucket : (number + 1) * bucket]],
            layout="",
            layout_sha256=whole_hash((bucket,) * 4),
        )
        with WeightSender(places, token=TOKEN, keep_order=True, bytes_per_s=5e7) as sender:
            report = sender.distribute_buckets(source, 1, timeout_s=WITHIN_S)
            assert report.failed == {}
            assert report.received_bytes == {"first": len(DATA), "second": len(DATA)}
        for output in outputs:
            assert output.read_bytes() == DATA
    finally:
        gate.close()
        for receiver in receivers:
            receiver.close()


def test_a_bucket_larger_than_the_credit_is_refused_at_once() -> None:
    """No receiver could ever take it; the next version is sent."""
    with WeightReceiver(token=TOKEN) as receiver:
        sizes = (1000, 3000)
        source = BucketSource(
            sizes=sizes,
            parts=lambda number: [memoryview(bytes(sizes[number]))],
            layout="",
            layout_sha256=whole_hash(sizes),
            credit_bytes=2000,
        )
        with WeightSender([place(receiver.address, "host")], token=TOKEN) as sender:
            with pytest.raises(InvalidUse, match="a bucket has 3,000 bytes, but credit_bytes is 2,000"):
                sender.distribute_buckets(source, 1, timeout_s=WITHIN_S)
            assert sender.distribute(b"next", 2, timeout_s=WITHIN_S).failed == {}
        assert receiver.receive(WITHIN_S).version == 2


@pytest.mark.parametrize("version", [-1, 2**53])
def test_versions_that_cannot_be_are_refused_in_one_line(version: int) -> None:
    """By the error of ours, before anything is sent."""
    with (
        WeightReceiver(token=TOKEN) as receiver,
        WeightSender([place(receiver.address, "host")], token=TOKEN) as sender,
    ):
        with pytest.raises(InvalidUse, match=f"version {version}: give a number"):
            sender.distribute(b"weights", version, timeout_s=WITHIN_S)
        # A receiver takes what senders send: versions may go back, as after a restart from a checkpoint.
        for each in (5, 3):
            assert sender.distribute(b"weights", each, timeout_s=WITHIN_S).failed == {}
        assert [receiver.receive(WITHIN_S).version for _ in range(2)] == [5, 3]


def test_a_layout_too_long_for_a_message_is_refused() -> None:
    """The connection stays, and takes the next version."""
    with (
        WeightReceiver(token=TOKEN) as receiver,
        WeightSender([place(receiver.address, "host")], token=TOKEN) as sender,
    ):
        long = BucketSource(sizes=(), parts=lambda _: [], layout="x" * (17 * MB), layout_sha256="")
        with pytest.raises(InvalidUse, match="at most 16,777,216 can be sent"):
            sender.distribute_buckets(long, 1, timeout_s=WITHIN_S)
        assert sender.distribute(b"next", 2, timeout_s=WITHIN_S).failed == {}
        assert receiver.receive(WITHIN_S).version == 2


def test_transfers_begin_again_after_the_last_number() -> None:
    """A connection that has carried almost 2^32 buckets carries more."""

    def parts(number: int) -> Iterator[memoryview]:
        yield memoryview(DATA)[number * MB : (number + 1) * MB]

    sizes = (MB,) * 3
    source = BucketSource(sizes=sizes, parts=parts, layout="", layout_sha256=whole_hash(sizes))
    with WeightReceiver(token=TOKEN) as receiver, WeightReceiver(token=TOKEN) as other:
        places = [place(receiver.address, "one"), place(other.address, "two")]
        with WeightSender(places, token=TOKEN) as sender:
            sender._next_transfer = (1 << 32) - 5
            for version in range(1, 4):
                assert sender.distribute_buckets(source, version, timeout_s=WITHIN_S).failed == {}
            assert sender._next_transfer == 7
        for each in (receiver, other):
            for version in range(1, 4):
                weights = each.receive(WITHIN_S)
                assert (weights.version, bytes(weights.data)) == (version, DATA[: 3 * MB])


def order_of(layout: BlockLayout, version: int) -> RelayOrder:
    """Return the order of a distribution that carries all blocks."""
    sizes = tuple(end - begin for begin, end in map(layout.span, layout.sent))
    text = layout.model_dump_json()
    return RelayOrder(key=f"w/{version}", version=version, first_transfer=1, sizes=sizes, layout=text)


def test_an_order_that_has_only_arrived_leaves_a_file_that_is_being_finished(tmp_path: Path) -> None:
    """A second sender's smaller weights come while the first one's are finished: the file has all or none."""
    file = BlockFile(tmp_path / "weights")
    layouts = []
    for size in (4 * MB, MB):
        found = blocks_of(memoryview(DATA)[:size])
        layouts.append(found.model_copy(update={"sent": tuple(range(len(found.sha256)))}))
    takers = []
    for version, layout in enumerate(layouts):
        taker = file.taker(order_of(layout, version))
        takers.append(taker)
        if version:
            break
        for number in layout.sent:
            begin, end = layout.span(number)
            taker.take(number, bytearray(DATA[begin:end]), 0, end - begin)
    with pytest.raises(InvalidUse, match="other weights for the same file"):
        takers[0].finish()
    assert not file.output.exists()
    takers[1].take(0, bytearray(DATA[:MB]), 0, MB)
    assert takers[1].finish() == MB
    assert file.output.read_bytes() == DATA[:MB]


def test_a_block_that_is_being_written_goes_to_no_other_file(tmp_path: Path) -> None:
    """A version is given up in the middle of a block: its file stays open until nobody works on it."""
    file = BlockFile(tmp_path / "weights")
    found = blocks_of(memoryview(DATA)[: 2 * MB])
    layout = found.model_copy(update={"sent": (0, 1)})
    taker = file.taker(order_of(layout, 1))
    taker.take(0, bytearray(DATA[:MB]), 0, MB)
    taker.drop()  # by the thread that hears the sender
    with contextlib.closing((tmp_path / "another").open("w+b", buffering=0)) as another:
        taker.take(1, bytearray(DATA[MB : 2 * MB]), 0, MB)  # was begun before, by the thread that takes
        assert another.seek(0, 2) == 0
    assert hashlib.sha256(file.part.read_bytes()).digest() == hashlib.sha256(DATA[: 2 * MB]).digest()
