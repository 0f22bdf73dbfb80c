"""Servers add what workers push, in any order of arrival, and hand it back."""

import contextlib
import threading
import time

import pytest
import torch

from pace.errors import CommunicationFailed, InvalidOptions
from pace.wire import meeting
from pace.wire.addresses import ServerAddress
from pace.wire.handshake import Greeting
from pace_servers.runtime.layout import memory_of
from pace_servers.runtime.link import PushPullCall, ServerLink
from pace_servers.runtime.server import Server
from tests.pace_servers.runtime.links import WITHIN_S, Arrival, Worker, layout_of
from tests.runtime.logs import captured_events

CHUNKS = 50_000  # elements: several chunks, the last one short


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pace")}


def test_sums_are_exact_round_after_round() -> None:
    """Three workers, two tensors of several chunks, ten rounds; nothing is left behind."""
    before = _threads()
    with Server(workers=3) as server:
        workers = [Worker(server, rank, 3) for rank in range(3)]
        tensors = [[torch.zeros(CHUNKS), torch.zeros(7)] for _ in workers]
        for worker, mine in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of(mine))
        for round_ in range(10):
            arrivals = []
            for rank, (worker, mine) in enumerate(zip(workers, tensors, strict=True)):
                order = (0, 1) if (rank + round_) % 2 else (1, 0)
                for segment in order:
                    mine[segment].copy_(torch.arange(len(mine[segment])) * (rank + 1) + round_)
                    arrivals.append(worker.start(segment, mine[segment]))
            for arrival in arrivals:
                arrival.wait()
            for mine in tensors:
                for tensor in mine:
                    assert torch.equal(tensor, torch.arange(len(tensor)) * 6.0 + 3 * round_)
        for worker in workers:
            worker.finish()
    for thread in _threads() - before:
        thread.join(WITHIN_S)
    assert _threads() <= before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """Small numbers that half precision would lose one after the other are not lost."""
    small = {torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}[dtype]
    values = [1.0, small, small, small, small]
    with Server() as server:
        workers = [Worker(server, rank, 5) for rank in range(5)]
        tensors = [torch.full((10,), value, dtype=dtype) for value in values]
        for worker, tensor in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of([tensor], deterministic=True))
        arrivals = [w.start(0, tensor) for w, tensor in zip(workers, tensors, strict=True)]
        for arrival in arrivals:
            arrival.wait()
        assert all(float(tensor[0]) == float(torch.tensor(1 + 4 * small, dtype=dtype)) for tensor in tensors)
        assert float(tensors[0][0]) > 1
        for worker in workers:
            worker.finish()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_deterministic_sums_do_not_depend_on_arrival(order: tuple[int, ...]) -> None:
    """The bits are those of the sum in the order of ranks, whoever came first."""
    values = [1e8, -1e8, 1.0]  # (a + b) + c is 1, and (b + c) + a is 0
    with Server() as server:
        workers = [Worker(server, rank, 3) for rank in range(3)]
        tensors = [torch.full((5,), value) for value in values]
        for worker, tensor in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of([tensor], deterministic=True))
        arrivals = [workers[rank].start(0, tensors[rank]) for rank in order]
        for arrival in arrivals:
            arrival.wait()
        assert all(torch.equal(tensor, torch.ones(5)) for tensor in tensors)
        for worker in workers:
            worker.finish()


def test_layouts_follow_one_another() -> None:
    """Another plan needs no new connection, and a slow worker still gets the sums of the plan before."""
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        for elements in (10, CHUNKS, 3):
            tensors = [torch.ones(elements) for _ in workers]
            for worker, tensor in zip(workers, tensors, strict=True):
                worker.link.announce(layout_of([tensor]))
                worker._rounds.clear()
            arrivals = [w.start(0, tensor) for w, tensor in zip(workers, tensors, strict=True)]
            for arrival in arrivals:
                arrival.wait()
            assert torch.equal(tensors[0], torch.full((elements,), 2.0))
        assert [list(session.held) for session in server.sessions.values()] == [[2]]
        for worker in workers:
            worker.finish()


def test_a_worker_may_be_two_layouts_ahead() -> None:
    """What it has pushed stays, though the others take over an earlier layout only then."""
    with Server() as server:
        fast, slow = (Worker(server, rank, 2) for rank in range(2))
        tensors = [torch.ones(3), torch.ones(3)]
        before, after = layout_of([torch.zeros(8)]), layout_of(tensors[:1])
        fast.link.announce(before)
        fast.link.announce(after)
        first = fast.start(0, tensors[0])
        (session,) = server.sessions.values()
        deadline = time.monotonic() + WITHIN_S
        while not (1 in session.held and session.held[1].unfinished) and time.monotonic() < deadline:
            time.sleep(0.01)  # from then on its push is there
        slow.link.announce(before)
        slow.link.announce(after)
        second = slow.start(0, tensors[1])
        for arrival, tensor in ((first, tensors[0]), (second, tensors[1])):
            arrival.wait()
            assert torch.equal(tensor, torch.full((3,), 2.0))
        assert list(session.held) == [1]
        for worker in (fast, slow):
            worker.finish()


@pytest.mark.races_with_machine(
    reason="the thread that waits for the urgent segment must note it before the other"
)
def test_an_urgent_segment_overtakes_bulk() -> None:
    """What is put in last and needed first is back first; pacing keeps the bulk under way until then."""
    done: list[str] = []

    def watch(arrival: Arrival, name: str) -> None:
        arrival.wait()
        done.append(name)
        worker.link._stream.set_pacing(1e9)

    with Server() as server:
        worker = Worker(server, 0, 1)
        worker.link._stream.set_pacing(1e6)
        urgent, bulk = torch.ones(1000), torch.ones(2_500_000)
        worker.link.announce(layout_of([urgent, bulk]))
        watches = []
        for segment, tensor, name in ((1, bulk, "bulk"), (0, urgent, "urgent")):
            arrival = worker.start(segment, tensor)
            watches.append(threading.Thread(target=watch, args=(arrival, name)))
            watches[-1].start()
        for each in watches:
            each.join(WITHIN_S)
        worker.finish()
    assert done == ["urgent", "bulk"]


def test_a_straggler_stops_nobodys_uplink() -> None:
    """All that one worker pushes leaves it, far more than buffers hold, before another pushes anything."""
    parts = [torch.ones(1 << 18) for _ in range(16)]
    left = threading.Semaphore(0)
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        for worker in workers:
            worker.link.announce(layout_of(parts))
        arrivals = [Arrival() for _ in parts]
        for number, part in enumerate(parts):
            workers[0].link.start(
                PushPullCall(
                    segment=number,
                    round=1,
                    memory=memory_of(part),
                    done=arrivals[number].done,
                    on_left=left.release,
                )
            )
        for _ in parts:
            assert left.acquire(timeout=WITHIN_S)
        assert not any(arrival.event.is_set() for arrival in arrivals)
        late = [torch.full((1 << 18,), 2.0) for _ in parts]
        arrivals += [workers[1].start(number, part) for number, part in enumerate(late)]
        for arrival in arrivals:
            arrival.wait()
        assert all(bool((part == 3.0).all()) for part in [*parts, *late])
        for worker in workers:
            worker.finish()


def test_a_worker_that_vanishes_is_named_to_the_others() -> None:
    """The connection ends without a word: every other worker's segments fail with its rank."""
    with Server() as server:
        workers = [Worker(server, rank, 3) for rank in range(3)]
        tensors = [torch.ones(10) for _ in workers]
        for worker, tensor in zip(workers, tensors, strict=True):
            worker.link.announce(layout_of([tensor]))
        arrivals = [workers[rank].start(0, tensors[rank]) for rank in (0, 2)]
        workers[1].link._outbox.drop()
        for arrival in arrivals:
            with pytest.raises(CommunicationFailed, match="rank 1 is gone"):
                arrival.wait()
        assert "rank 1 is gone" in workers[0].reason
        for worker in workers:
            worker.link.abort("over")
            worker.link.close()


def test_a_worker_that_leaves_while_it_is_needed_is_named() -> None:
    """A goodbye is no failure by itself; a sum that lacks the worker is one."""
    with Server() as server:
        workers = [Worker(server, rank, 2) for rank in range(2)]
        tensor = torch.ones(10)
        for worker in workers:
            worker.link.announce(layout_of([tensor]))
        workers[1].finish()
        assert not workers[0].failed.is_set()
        with pytest.raises(CommunicationFailed, match="rank 1 has left the training"):
            workers[0].start(0, tensor).wait()
        workers[0].link.close()


def test_a_server_that_goes_is_named_and_nobody_hangs() -> None:
    """A server that is closed under way fails what is in flight."""
    server = Server()
    worker = Worker(server, 0, 2)
    tensor = torch.ones(10)
    worker.link.announce(layout_of([tensor]))
    arrival = worker.start(0, tensor)
    server.close(reason="the server was stopped")
    with pytest.raises(CommunicationFailed, match="the server was stopped"):
        arrival.wait()
    worker.link.close()


@pytest.mark.races_with_machine(reason="the other worker must give a sign of life every second")
def test_a_silent_worker_is_named() -> None:
    """No data, no signs of life: after the time that was agreed on, the others learn who is silent."""
    with Server() as server, contextlib.ExitStack() as ends:
        alive = Worker(server, 0, 2, silence_s=1.0)
        silent = Worker(server, 1, 2, silence_s=1.0)
        tensor = torch.ones(10)
        for worker in (alive, silent):
            ends.callback(worker.link.close)  # also when it is tried again
            ends.callback(worker.link.abort, "over")
            worker.link.announce(layout_of([tensor]))
        with (
            silent.link._outbox._wake,  # its writing thread can do nothing
            pytest.raises(CommunicationFailed, match="rank 1 is gone: no sign of life"),
        ):
            alive.start(0, tensor).wait()


def test_a_wait_for_a_server_is_logged_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped address must not look like a slow start until the time-out."""
    monkeypatch.setattr(meeting, "_QUIET_S", 0.0)
    with (
        captured_events() as events,
        pytest.raises(CommunicationFailed, match=r"127\.0\.0\.1:9 did not answer"),
    ):
        ServerLink(
            ServerAddress(host="127.0.0.1", port=9, name="server 0 (127.0.0.1:9)"),
            Greeting(job="job", rank=0, size=1, silence_s=20.0),
            token=None,
            on_failure=print,
            within_s=0.4,
        )
    assert [(each["event"], each["server"]) for each in events] == [
        ("pace.server_awaited", "server 0 (127.0.0.1:9)")
    ]
    assert "refused" in events[0]["reason"]


def test_other_machines_need_a_token() -> None:
    """What can be reached from elsewhere is not opened without one."""
    with pytest.raises(InvalidOptions, match="give it a token"):
        Server("0.0.0.0")  # it is refused
    with Server("0.0.0.0", token="secret") as server:  # with a token it may
        assert server.port
