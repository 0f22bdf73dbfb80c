"""Shards of four ranks to receivers with other shards: equal to the bit, and whole or not at all."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from pace.errors import CommunicationFailed, InvalidUse, ScheduleMismatch
from pace_sync.documents.reshard_plan import ReshardPlan
from pace_sync.documents.resharding import Resharding, ShardHolder, ShardReceiver, TensorBox, WholeTensor
from pace_sync.planning.reshard import plan_reshard
from pace_sync.weight_sync import ShardSender, StateReceiver, StateSender, shard_boxes
from tests.pace_sync.weight_sync.sharded_models import reshard, same_bits
from tests.runtime.launch import run_ranks, try_ranks

WITHIN_S = 200.0


@pytest.mark.slow
def test_shards_arrive_bit_equal() -> None:
    """100 MB, two versions: FSDP, tensor parallel and replicated DTensors become whole and column shards."""
    found = run_ranks(reshard, 4, 100, False)
    assert found == [[(1, True, {}), (2, True, {})]] * 4


@pytest.mark.slow
def test_a_killed_rank_leaves_the_old_version_everywhere() -> None:
    """A rank dies in the middle of version 2: nothing of it is given to anybody, and the others learn it."""
    outcomes = try_ranks(reshard, 4, 100, True, expect_lost=[3])
    for outcome in outcomes[:3]:
        assert outcome.returned, outcome
        first, second = outcome.result
        assert first == (1, True, {})
        assert second[:2] == (2, "nothing arrived")
        assert second[2]
        assert all('sender "trainer 3" of a part is gone' in said for said in second[2].values()), second


ROWS, WIDTH = 40, 30


def halves(rows: int = ROWS) -> list[TensorBox]:
    """Return the upper and the lower half of a tensor."""
    first = rows // 2
    return [
        TensorBox(tensor="w", begin=(0, 0), shape=(first, WIDTH)),
        TensorBox(tensor="w", begin=(first, 0), shape=(rows - first, WIDTH)),
    ]


def two_to_one(**changed: Any) -> ReshardPlan:
    """Return a plan for two senders, each with half of the rows, and one receiver."""
    fields: dict[str, Any] = {
        "name": "test",
        "tensors": (WholeTensor(name="w", shape=(ROWS, WIDTH)),),
        "senders": tuple(
            ShardHolder(
                name=name, bytes_per_s=1e8, shards=(TensorBox(tensor="w", begin=(0, 0), shape=(ROWS, WIDTH)),)
            )
            for name in ("a", "b")
        ),
        "receivers": (
            ShardReceiver(
                name="engine",
                bytes_per_s=1e8,
                wants=(TensorBox(tensor="w", begin=(0, 0), shape=(ROWS, WIDTH)),),
            ),
        ),
    }
    return plan_reshard(Resharding(**fields | changed))


@pytest.fixture
def engine() -> Iterator[StateReceiver]:
    """Return a receiver that wants all."""
    with StateReceiver(token="secret", like={"w": torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)}) as made:
        yield made


def weights() -> torch.Tensor:
    """Return what is sent."""
    return torch.arange(ROWS * WIDTH, dtype=torch.bfloat16).reshape(ROWS, WIDTH)


def test_both_halves_make_a_version(engine: StateReceiver) -> None:
    """The first sender waits for the second one; then both have delivered."""
    from concurrent.futures import ThreadPoolExecutor

    plan, places = two_to_one(), {"engine": engine.address}
    assert [stream.size_bytes for stream in plan.streams] == [ROWS * WIDTH] * 2
    with (
        ShardSender("a", plan, places, token="secret") as first,
        ShardSender("b", plan, places, token="secret") as second,
        ThreadPoolExecutor(1) as pool,
    ):
        sending = pool.submit(first.send, {"w": weights()}, 1, timeout_s=WITHIN_S)
        with pytest.raises(CommunicationFailed, match="no weights arrived"):
            engine.receive(0.3)
        assert not sending.done()
        assert second.send({"w": weights()}, 1, timeout_s=WITHIN_S).failed == {}
        assert sending.result().failed == {}
    assert same_bits(engine.receive(WITHIN_S).data["w"], weights())


@pytest.mark.races_with_machine(reason="the second version must begin before the first one's time-out")
def test_another_version_ends_the_one_before(engine: StateReceiver) -> None:
    """A rank that is one version ahead: whoever waits for the older one learns that it was given up."""
    from concurrent.futures import ThreadPoolExecutor

    plan, places = two_to_one(), {"engine": engine.address}
    with (
        ShardSender("a", plan, places, token="secret") as first,
        ShardSender("b", plan, places, token="secret") as second,
        ThreadPoolExecutor(2) as pool,
    ):
        old = pool.submit(first.send, {"w": weights()}, 1, timeout_s=WITHIN_S)
        with pytest.raises(CommunicationFailed):
            engine.receive(0.3)
        new = pool.submit(second.send, {"w": weights()}, 2, timeout_s=WITHIN_S)
        assert "version 1 was given up: version 2 has begun" in old.result().failed["engine"]
        assert first.send({"w": weights()}, 2, timeout_s=WITHIN_S).failed == {}
        assert new.result().failed == {}
    assert engine.receive(WITHIN_S).version == 2


@pytest.mark.slow
def test_far_receivers_are_sent_to_each_and_may_return() -> None:
    """100 MB straight to three receivers, from two of three senders; one receiver is new for version 2."""
    from concurrent.futures import ThreadPoolExecutor

    rows, width = 50_000, 1000
    whole = (TensorBox(tensor="w", begin=(0, 0), shape=(rows, width)),)
    rates = {"a": 4e9, "b": 1e9, "slow": 1.0}
    plan = two_to_one(
        tensors=(WholeTensor(name="w", shape=(rows, width)),),
        senders=tuple(ShardHolder(name=n, bytes_per_s=rate, shards=whole) for n, rate in rates.items()),
        receivers=tuple(
            ShardReceiver(name=f"e{n}", bytes_per_s=1e9, hop_s=0.05, wants=whole) for n in range(3)
        ),
    )
    assert {stream.receivers for stream in plan.streams} == {("e0",), ("e1",), ("e2",)}
    assert {stream.sender for stream in plan.streams} == {"a", "b"}
    bits = torch.arange(rows * width, dtype=torch.int32).to(torch.int16).reshape(rows, width)
    state = {"w": bits.view(torch.bfloat16)}
    like = {"w": torch.zeros(rows, width, dtype=torch.bfloat16)}
    with ExitStack() as opened:
        receivers = {f"e{n}": opened.enter_context(StateReceiver(token="t", like=like)) for n in range(3)}
        places = {name: receiver.address for name, receiver in receivers.items()}
        senders = [opened.enter_context(ShardSender(name, plan, places, token="t")) for name in rates]
        for version in (1, 2):
            with ThreadPoolExecutor(len(senders)) as pool:
                sending = [pool.submit(each.send, state, version, timeout_s=WITHIN_S) for each in senders]
            assert [each.result().failed for each in sending] == [{}] * 3
            for receiver in receivers.values():
                assert same_bits(receiver.receive(WITHIN_S).data["w"], state["w"])
            host, _, port = places["e1"].rpartition(":")
            receivers["e1"].close()
            again = StateReceiver((host, int(port)), token="t", like=like)
            receivers["e1"] = opened.enter_context(again)


def test_other_plans_and_unknown_parts_are_refused(engine: StateReceiver) -> None:
    """In one line each, before the first byte."""
    from concurrent.futures import ThreadPoolExecutor

    plan, places = two_to_one(), {"engine": engine.address}
    other = two_to_one(name="other")
    with (
        ShardSender("a", plan, places, token="secret") as first,
        ShardSender("b", other, places, token="secret") as second,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(first.send, {"w": weights()}, 1, timeout_s=WITHIN_S)
        with pytest.raises(CommunicationFailed):
            engine.receive(0.3)
        refused = second.send({"w": weights()}, 1, timeout_s=WITHIN_S).failed
        assert 'sender "b" follows another plan' in refused["engine"]
        assert "a part of version 1 was refused" in waiting.result().failed["engine"]
        with pytest.raises(ScheduleMismatch, match=r'"w" is torch\.float32'):
            first.send({"w": weights().float()}, 2)
        with pytest.raises(ScheduleMismatch, match='sends tensor "w", which this rank does not have'):
            first.send({"v": weights()}, 2)
    with pytest.raises(InvalidUse, match='sends to receiver "engine": give its address'):
        ShardSender("a", plan, {})


def test_parts_need_to_know_what_is_expected() -> None:
    """A receiver without ``like`` cannot know when all parts are there."""
    with (
        StateReceiver(token="secret") as receiver,
        ShardSender("a", two_to_one(), {"engine": receiver.address}, token="secret") as sender,
    ):
        failed = sender.send({"w": weights()}, 1, timeout_s=WITHIN_S).failed
    assert "make the receiver with like=" in failed["engine"]


def test_boxes_of_plain_tensors() -> None:
    """A plain tensor is here whole; one without elements is no box."""
    state = {"w": torch.zeros(3, 4), "one": torch.tensor(1.0), "none": torch.zeros(0, 4)}
    assert shard_boxes(state) == (
        TensorBox(tensor="w", begin=(0, 0), shape=(3, 4)),
        TensorBox(tensor="one", begin=(), shape=()),
    )


def test_a_plain_sender_still_serves(engine: StateReceiver) -> None:
    """One sender of whole tensors to the same receiver, between versions in parts."""
    with StateSender([engine.address], token="secret") as sender:
        assert sender.send({"w": weights()}, 5, timeout_s=WITHIN_S).failed == {}
    assert same_bits(engine.receive(WITHIN_S).data["w"], weights())
