"""Deltas: only blocks that changed, the result equal to the bit, whole weights for whoever missed one."""

import signal
import time
from pathlib import Path

import pytest
import torch

from pace_fabric.runtime.connection import FabricLink
from pace_sync.documents.delta_sync import DeltaPlan
from pace_sync.weight_sync import StateReceiver, StateSender
from tests.pace_sync.weight_sync.state_process import WITHIN_S, delta_plan, state_of
from tests.pace_sync.weight_sync.test_state_dicts import End, same

BLOCK_BYTES = 1 << 12
# As many buckets as it takes for a delta to be killed in its middle.
MEGABYTES = 50


def next_state(state: dict[str, torch.Tensor], version: int) -> dict[str, torch.Tensor]:
    """Return a version in which a few rows of one tensor changed, and one element of another."""
    new = {name: tensor.clone() for name, tensor in state.items()}
    new["embed"][version * 7 % 100 : version * 7 % 100 + 3] += 1
    new["scale"].fill_(version)
    return new


@pytest.mark.parametrize("rule", ["ask", "wait"])
def test_only_what_changed_is_sent(rule: str) -> None:
    """An anchor and three deltas, bit-equal; the bytes are those of the blocks that changed."""
    with (
        StateReceiver(token="secret") as first,
        StateReceiver(token="secret") as second,
        StateSender([first.address, second.address], token="secret", deltas=delta_plan(rule)) as sender,
    ):
        state = state_of(1, 1)
        total = sum(tensor.nbytes for tensor in state.values())
        for version in (1, 2, 3, 4):
            report = sender.send(state, version, timeout_s=WITHIN_S)
            assert report.failed == {}
            brought = report.received_bytes[first.address]
            if version == 1:
                assert brought == total
            else:  # three rows of 2,000 bytes lie in up to three blocks, and one number in its own
                assert 0 < brought <= 3 * BLOCK_BYTES + 4
            for receiver in (first, second):
                weights = receiver.receive(WITHIN_S)
                assert weights.version == version
                assert same(weights.data, state)
            state = next_state(state, version + 1)


def test_a_version_without_changes_is_a_version() -> None:
    """Nothing is sent, and the receiver has the next version."""
    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], token="secret", deltas=delta_plan("ask")) as sender,
    ):
        for version in (1, 2):
            report = sender.send(state_of(1, 1), version, timeout_s=WITHIN_S)
            weights = receiver.receive(WITHIN_S)
            assert (weights.version, same(weights.data, state_of(1, 1))) == (version, True)
        assert report.sent_bytes["sender"] == 0


@pytest.mark.parametrize("noticed", [True, False])
def test_whoever_missed_a_version_asks(monkeypatch: pytest.MonkeyPatch, noticed: bool) -> None:
    """A receiver that is new gets whole weights in the same call; the others get the delta.

    That the old connection has ended may be noticed before the call or during it.
    """
    with StateReceiver(token="secret") as old, StateReceiver(token="secret") as lost:
        place = lost.address.rpartition(":")
        with StateSender([lost.address, old.address], token="secret", deltas=delta_plan("ask")) as sender:
            state = state_of(1, 1)
            assert sender.send(state, 1, timeout_s=WITHIN_S).failed == {}
            lost.close()
            gone = sender._sender._controls[lost.address]
            while not gone.over:
                time.sleep(0.01)
            asked = iter([noticed])
            monkeypatch.setattr(
                FabricLink,
                "over",
                property(lambda link: link._over.is_set() and (link is not gone or next(asked, True))),
            )
            state = next_state(state, 2)
            with StateReceiver((place[0], int(place[2])), token="secret") as new:
                report = sender.send(state, 2, timeout_s=WITHIN_S)
                assert (report.failed, report.wanting) == ({}, (new.address,))
                assert report.received_bytes[new.address] > 20 * report.received_bytes[old.address]
                assert same(new.receive(WITHIN_S).data, state)
                old.receive(WITHIN_S)
                assert same(old.receive(WITHIN_S).data, state)


def test_whoever_missed_a_version_waits_for_the_anchor() -> None:
    """By this rule it is named with one clear line, keeps what it has, and the periodic anchor serves it."""
    with StateReceiver(token="secret") as receiver:
        with StateSender([receiver.address], token="secret", deltas=delta_plan("wait", every=3)) as sender:
            state = state_of(1, 1)
            assert sender.send(state, 1, timeout_s=WITHIN_S).failed == {}
            receiver._held = None  # as after a restart
            said = sender.send(next_state(state, 2), 2, timeout_s=WITHIN_S).failed[receiver.address]
            assert said == (
                "the delta is from version 1, and here is no version with deltas: whole weights are needed"
            )
            assert sender.send(state, 3, timeout_s=WITHIN_S).failed == {
                receiver.address: said.replace("1", "2", 1)
            }
            assert sender.send(state, 4, timeout_s=WITHIN_S).failed == {}
        assert [receiver.receive(WITHIN_S).version for _ in range(2)] == [1, 4]


def test_weights_that_were_changed_in_place_are_no_base() -> None:
    """An engine that writes into the tensors that it got: its receiver asks for whole weights."""
    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], token="secret", deltas=delta_plan("ask")) as sender,
    ):
        state = state_of(1, 1)
        sender.send(state, 1, timeout_s=WITHIN_S)
        receiver.receive(WITHIN_S).data["head"].neg_()
        state = next_state(state, 2)
        report = sender.send(state, 2, timeout_s=WITHIN_S)
        assert (report.failed, report.wanting) == ({}, (receiver.address,))
        assert same(receiver.receive(WITHIN_S).data, state)


def test_deltas_of_weights_that_are_cast() -> None:
    """Float32 at the sender, bfloat16 at the engine: each version is what a cast of all would be."""
    like = {"w": torch.zeros(700, 30, dtype=torch.bfloat16)}
    state = {"w": torch.randn(700, 30)}
    with (
        StateReceiver(token="secret", like=like) as receiver,
        StateSender([receiver.address], token="secret", deltas=delta_plan("ask")) as sender,
    ):
        for version in (1, 2, 3):
            report = sender.send(state, version, timeout_s=WITHIN_S)
            assert (report.failed, report.wanting) == ({}, ())
            assert same(receiver.receive(WITHIN_S).data, {"w": state["w"].to(torch.bfloat16)})
            state = {"w": state["w"].clone()}
            state["w"][version * 100 : version * 100 + 40] *= 3


def test_much_change_is_an_anchor() -> None:
    """More bytes than the plan's turning point go whole."""
    plan = DeltaPlan(**delta_plan("ask").model_dump() | {"anchor_above_bytes": BLOCK_BYTES})
    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], token="secret", deltas=plan) as sender,
    ):
        for version in (1, 2):
            report = sender.send(state_of(version, 1), version, timeout_s=WITHIN_S)
            assert report.received_bytes[receiver.address] == sum(
                tensor.nbytes for tensor in state_of(version, 1).values()
            )


@pytest.mark.slow
def test_a_killed_sender_of_deltas_leaves_whole_versions(tmp_path: Path) -> None:
    """50 MB to two receivers; the sender is killed in the middle of a delta: they keep the anchor."""
    files = [tmp_path / "one", tmp_path / "two"]
    receivers = [End("receive", file) for file in files]
    sender: End | None = None
    try:
        addresses = [receiver.next_line() for receiver in receivers]
        sender = End("send-deltas", MEGABYTES, *addresses)
        assert sender.next_line() == "1 []"
        assert sender.process.wait(WITHIN_S) == -signal.SIGKILL
        state = state_of(1, MEGABYTES)
        for receiver, file in zip(receivers, files, strict=True):
            assert receiver.next_line() == "1"
            assert same(torch.load(file), state)
        # Another sender has no version to compare with, and begins with an anchor; then a delta fits.
        with StateSender(addresses, token="secret", deltas=delta_plan("ask")) as other:
            for version in (2, 3):
                report = other.send(state, version, timeout_s=WITHIN_S)
                assert (report.failed, report.wanting) == ({}, ())
                for receiver, file in zip(receivers, files, strict=True):
                    assert receiver.next_line() == str(version)
                    assert same(torch.load(file), state)
                state = next_state(state, version + 1)
    finally:
        for end in (*receivers, *([] if sender is None else [sender])):
            end.close()
