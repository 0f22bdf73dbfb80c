"""Signs of life: who keeps the store stays until the others have asked it."""

import json
import signal
import threading
import time
import weakref
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from pace.runtime.fsdp import MeshPeers
from pace.runtime.transports.peers import EVERYTHING_SENT, PERIOD_S, Peers
from pace.runtime.transports.torch_threads import Sockets
from tests.runtime.programs import script


@pytest.mark.races_with_machine(reason="threads must run within the periods of a sign of life")
def test_the_keeper_stays_until_the_others_have_left() -> None:
    """A rank that notices a failure late still finds the store, and blames nobody who is innocent."""
    store = HashStore()
    keeper, other = (Peers(store, rank, 2, dict) for rank in range(2))
    keeper.close()
    staying = threading.Thread(target=keeper.linger)
    staying.start()
    staying.join(0.7)
    assert staying.is_alive()
    other.close()
    staying.join(5.0)
    assert not staying.is_alive()


@pytest.mark.races_with_machine(reason="threads must run within the periods of a sign of life")
def test_the_keeper_does_not_wait_for_silent_ranks() -> None:
    """A rank that never spoke, or speaks no more, is not waited for beyond a few periods."""
    keeper = Peers(HashStore(), 0, 2, dict)
    keeper.close()
    staying = threading.Thread(target=keeper.linger)
    staying.start()
    staying.join(5.0)
    assert not staying.is_alive()


@pytest.mark.races_with_machine(reason="threads must run within the periods of a sign of life")
def test_who_was_silent_since_a_stall_is_named_and_nobody_else() -> None:
    """A rank that spoke once is lost; ranks that speak are not, however soon after a stall one asks."""
    store = HashStore()
    alive = [Peers(store, rank, 3, dict) for rank in range(2)]
    store.set("alive/2", json.dumps({"beat": 7}))
    time.sleep(0.1)
    assert alive[0].explain_stall() == EVERYTHING_SENT
    assert alive[0].explain_failure() == "rank 2 gives no sign of life"
    assert alive[1].explain_stall() == EVERYTHING_SENT
    time.sleep(1.5)
    assert alive[1].explain_failure() == "rank 2 gives no sign of life"
    for peers in alive:
        peers.close()


class _LostStore:
    """A store that answers until its host is lost; then calls end only when the test does."""

    def __init__(self) -> None:
        self.own = HashStore()
        self.lost, self.ended = threading.Event(), threading.Event()

    def _wait(self) -> None:
        if self.lost.is_set():
            self.ended.wait()

    def set(self, key: str, value: str, /) -> None:
        """Write, or wait."""
        self._wait()
        self.own.set(key, value)

    def get(self, key: str, /) -> bytes:
        """Read, or wait."""
        self._wait()
        return self.own.get(key)

    def check(self, keys: list[str], /) -> bool:
        """Look, or wait."""
        self._wait()
        return self.own.check(keys)


@pytest.mark.parametrize("mesh", [False, True], ids=["replicas", "a mesh and its replicas"])
def test_a_store_that_is_lost_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch, mesh: bool) -> None:
    """Survivors end in time: once a failure was blamed on the store's host, no call waits for an answer."""
    store = _LostStore()
    store.lost.set()
    peers = Peers(store, 1, 2, dict, keeper=0)
    if mesh:
        peers = MeshPeers(store, [0, 1, 2, 3], 1, replicas=peers, sockets=Sockets())
    assert "the store that it keeps does not answer" in peers.explain_failure()
    monkeypatch.setattr("pace.runtime.transports.peers._ANSWER_S", 1e6)
    assert peers.look() is None
    peers.close(failed=True)
    peers.linger()
    store.ended.set()


class _Training:
    def progress(self) -> dict[str, Any]:
        """Say nothing in particular."""
        return {"round": 3, "open": False, "missing": []}


def test_a_sign_of_life_keeps_no_training_alive() -> None:
    """What is followed can be collected while its rank is alive; the rank goes on to say that it is."""
    store = HashStore()
    training = _Training()
    peers = Peers(store, 0, 1, training.progress)
    followed = weakref.ref(training)
    del training
    deadline = time.monotonic() + 30
    while followed() is not None and time.monotonic() < deadline:  # it may be asked just now
        time.sleep(0.01)
    assert followed() is None
    peers.close()
    assert json.loads(store.get("alive/0"))["left"]


@pytest.mark.races_with_machine(reason="threads must run within the periods of a sign of life")
def test_why_a_rank_left_and_what_it_has_not_begun_is_told() -> None:
    """A rank that left says why; one that is alive, and behind, is named by its step."""
    store = HashStore()
    steps = [{"round": 4, "open": True, "missing": []}, {"round": 4, "open": False, "missing": []}]
    asking, behind = (Peers(store, rank, 4, steps[rank].copy) for rank in range(2))
    store.set("alive/2", json.dumps({"beat": 9, "round": 4, "open": True, "left": True, "failed": True}))
    store.set("alive/3", json.dumps({"beat": 9, "round": 4, "open": True, "missing": [1, 2]}))
    time.sleep(0.1)
    assert asking.explain_stall() == (
        "rank 1 has not begun step 5; rank 3 has not sent groups 1, 2 of its step 5"
    )
    behind.close("ValueError")
    assert asking.explain_failure() == (
        "rank 1 has left the training (ValueError), rank 3 gives no sign of life"
    )
    asking.close()


def test_who_left_is_named_where_the_keeper_ends_while_others_ask() -> None:
    """Its store is gone at the second look; it left because of the same failure, only sooner."""

    class EndingStore(HashStore):
        looks = 0

        def check(self, keys: list[str]) -> bool:
            if keys == ["alive/0"]:
                self.looks += 1
            if self.looks > 1:
                raise RuntimeError("connection reset by peer")
            found: bool = super().check(keys)
            return found

    store = EndingStore()
    store.set("alive/0", json.dumps({"beat": 9, "round": 4, "open": True}))
    store.set("alive/1", json.dumps({"beat": 9, "round": 4, "left": True}))
    asking = Peers(store, 2, 3, dict)
    said = "rank 1 has left the training after its step 4: let every rank take the same number of steps"
    assert asking.explain_failure() == said
    asking.close()


class _Told:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.heard = threading.Event()

    def hear(self, told: str) -> None:
        self.said.append(told)
        self.heard.set()


def test_a_rank_that_notices_nothing_hears_of_a_failure_from_another() -> None:
    """Some transports tell only those ranks that share a connection with the one that is lost."""
    store = HashStore()
    store.set("alive/2", json.dumps({"beat": 9, "left": True}))
    told = _Told()
    waiting = Peers(store, 0, 3, dict)
    waiting.follow_failures(told.hear)
    noticing = Peers(store, 1, 3, dict)
    assert not told.heard.wait(2 * PERIOD_S)
    assert noticing.explain_failure() == "rank 2 has left the training"
    assert told.heard.wait(60)
    assert set(told.said) == {"rank 2 has left the training"}
    for each in (waiting, noticing):
        each.close()


def test_what_others_said_outlives_the_store() -> None:
    """A rank whose own call ends after the store's host has left blames the rank that others blamed."""
    store, told = _LostStore(), _Told()
    peers = Peers(store, 1, 3, dict, keeper=0)
    peers.follow_failures(told.hear)
    store.set("failed", "rank 2 gives no sign of life")
    assert told.heard.wait(60)
    store.lost.set()
    assert peers.explain_failure() == "rank 2 gives no sign of life"
    peers.close(failed=True)
    store.ended.set()


_KEEP_STORE = """
import time
from torch._C._distributed_c10d import TCPStore

store = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_who_asks_is_not_held_up_by_a_store_that_is_stopped() -> None:
    """The keeper's process is stopped, not dead: asking, looking and leaving return, and it is named."""
    with script(_KEEP_STORE) as keeper:
        peers = Peers(TCPStore("127.0.0.1", int(keeper.line()), 1), 1, 2, dict)
        peers.ask(1)
        assert peers.look() is not None
        keeper.process.send_signal(signal.SIGSTOP)
        peers.ask(2)
        peers.ask_for_state(1, 3, last=False)
        assert peers.explain_failure() == (
            "rank 0 is gone: the store that it keeps does not answer; if its own error names another rank, "
            "that rank ended first"
        )
        peers.close(failed=True)
        peers.release()
