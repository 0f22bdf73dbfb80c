"""Signs of life: who keeps the store stays until the others have asked it."""

import json
import threading
import time

from torch._C._distributed_c10d import HashStore

from pace.runtime.peers import EVERYTHING_SENT, Peers


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


def test_the_keeper_does_not_wait_for_silent_ranks() -> None:
    """A rank that never spoke, or speaks no more, is not waited for beyond a few periods."""
    keeper = Peers(HashStore(), 0, 2, dict)
    keeper.close()
    staying = threading.Thread(target=keeper.linger)
    staying.start()
    staying.join(5.0)
    assert not staying.is_alive()


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
