"""Weights for many hosts come, or fail, by the time-out, whatever some of the hosts do."""

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pace.wire.addresses import ServerAddress
from pace.wire.frames import Frame, FrameKind
from pace_fabric.runtime.connection import FabricLink, connect, listen
from pace_fabric.runtime.messages import (
    BlocksAnswer,
    BlocksCall,
    Message,
    RelayAnswer,
    RelayNotice,
    RelayOrder,
)
from pace_fabric.runtime.weight_sync.buckets import layout_hash
from pace_fabric.runtime.weight_sync.file_delivery import distribute_file
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S
from tests.pace_fabric.runtime.test_block_files import DATA, Receiver

TIMEOUT_S = 8.0
# So many signs of life a caller takes before an answer; they would take a minute.
MOST_PINGS = 100


class PingingHost:
    """A host that gives signs of life until its caller leaves, and never says who it is."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = ServerAddress(host="127.0.0.1", port=self._socket.getsockname()[1], name="pings")
        self.pings = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._socket.accept()
            with caller:
                while True:
                    caller.sendall(Frame(FrameKind.PING).pack())
                    self.pings += 1
                    time.sleep(0.6)

    def close(self) -> None:
        """Wait until the caller has left."""
        self._thread.join(WITHIN_S)
        self._socket.close()


class WordyHost:
    """A host whose links live, and that answers as it is told, or not at all."""

    def __init__(self, name: str, answer: Callable[[FabricLink, Message], None]) -> None:
        self.heard: list[Message] = []
        self._answer = answer
        self._links: list[FabricLink] = []
        self._listener = listen(("127.0.0.1", 0), self._take, token=TOKEN)
        self.place = ServerAddress(host=self._listener.host, port=self._listener.port, name=name)

    def _take(self, link: FabricLink) -> None:
        self._links.append(link)
        link.start(self._hear, lambda _link, _reason: None)

    def _hear(self, link: FabricLink, message: Message) -> None:
        self.heard.append(message)
        self._answer(link, message)

    def close(self) -> None:
        """Stop it."""
        self._listener.stop()
        for link in self._links:
            link.close()


def lacks_all(link: FabricLink, message: Message) -> None:
    """Say that all blocks are missing, and nothing more."""
    if isinstance(message, BlocksCall):
        link.send(BlocksAnswer(missing=tuple(range(len(message.sha256)))))


def begs(link: FabricLink, message: Message) -> None:
    """Take every order, and ask for it by another way."""
    lacks_all(link, message)
    if isinstance(message, RelayOrder):
        link.send(RelayAnswer(key=message.key, layout_sha256=layout_hash(message.layout)))
        link.send(RelayNotice(key=message.key, reason="the host before it is gone", again=True))


@pytest.mark.slow
@pytest.mark.races_with_machine(reason="the host that answers must do so within seconds")
def test_hosts_that_answer_too_little_are_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five hosts say nothing, or not enough: the sixth has the weights, and no more time is spent than given.

    A host that gives signs of life is left before its caller has counted them all, and the times for which
    each host is called add up to less than the time-out.
    """
    called_s: defaultdict[str, float] = defaultdict(float)

    def calling(place: ServerAddress, *, within_s: float, **options: Any) -> FabricLink:
        called_s[place.name] += within_s
        return connect(place, within_s=within_s, **options)

    for module in ("file_delivery", "sender"):
        monkeypatch.setattr(f"pace_fabric.runtime.weight_sync.{module}.connect", calling)
    there, pinging = Receiver(tmp_path / "there"), PingingHost()
    hosts = [
        WordyHost("mute", lambda _link, _message: None),
        WordyHost("stuck", lacks_all),
        WordyHost("begs", begs),
    ]
    with contextlib.ExitStack() as stack:
        for close in (there.close, pinging.close, *(host.close for host in hosts)):
            stack.callback(close)
        deaf = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0))))
        silent = ServerAddress(host="127.0.0.1", port=deaf.getsockname()[1], name="deaf")
        places = [there.place, silent, pinging.place, *(host.place for host in hosts)]
        report = distribute_file(places, DATA, token=TOKEN, timeout_s=TIMEOUT_S)
        assert sorted(report.failed) == ["begs", "deaf", "mute", "pings", "stuck"]
        assert report.failed["stuck"] == "no weights in time"
        assert there.file.output.read_bytes() == DATA
        assert report.received_bytes["there"] >= len(DATA)
    assert 0 < pinging.pings < MOST_PINGS
    assert max(called_s.values()) <= TIMEOUT_S
    assert sum(isinstance(message, RelayOrder) for message in hosts[2].heard) <= 3


def test_no_host_gets_an_order_when_the_time_is_over() -> None:
    """Making hashes alone takes longer: the host is asked in vain, and named as failed."""
    ready = WordyHost("ready", lacks_all)
    with contextlib.closing(ready):
        report = distribute_file([ready.place], DATA, token=TOKEN, timeout_s=1e-6)
        assert list(report.failed) == ["ready"]
        assert not [message for message in ready.heard if isinstance(message, RelayOrder)]
