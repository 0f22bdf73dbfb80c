"""Attacks on deltas: versions given up while they are finished, small credits, and changes everywhere."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from pace_sync.weight_sync import StateReceiver, StateSender
from pace_sync.weight_sync import deltas as deltas_module
from pace_sync.weight_sync.deltas import DeltaTaker
from tests.pace_fabric.runtime.processes import WITHIN_S
from tests.pace_sync.weight_sync.state_process import delta_plan, state_of
from tests.pace_sync.weight_sync.test_state_dicts import planned, same


def changed(state: dict[str, torch.Tensor], by: float) -> dict[str, torch.Tensor]:
    """Return a state dict in which a tenth of one tensor differs."""
    found = {name: tensor.clone() for name, tensor in state.items()}
    found["head"][:, ::10] += by
    return found


def test_a_delta_given_up_while_it_is_finished_is_no_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends while 20 MB are hashed at the receiver: the next delta finds the version before.

    The receiver once kept copies of the base under the new version's hash, or an empty state dict.
    """
    first = state_of(1, 20)
    begun, over = threading.Event(), threading.Event()
    whole = DeltaTaker.finish

    def finish(self: DeltaTaker) -> dict[str, torch.Tensor]:
        if not begun.is_set():
            begun.set()
            assert over.wait(WITHIN_S)
        return whole(self)

    dropped = DeltaTaker.drop

    def drop(self: DeltaTaker) -> None:
        dropped(self)
        over.set()

    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], token="secret", deltas=delta_plan("ask")) as sender,
    ):
        assert sender.send(first, 1, timeout_s=WITHIN_S).failed == {}
        assert same(receiver.receive(WITHIN_S).data, first)
        monkeypatch.setattr(DeltaTaker, "finish", finish)  # the moments of the two threads
        monkeypatch.setattr(DeltaTaker, "drop", drop)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, changed(first, 1.0), 2, timeout_s=WITHIN_S)
            assert begun.wait(WITHIN_S)
            for link in list(receiver._receiver._links):
                link._stream.shutdown()
            assert list(sending.result(WITHIN_S).failed) == [receiver.address]
        assert over.wait(WITHIN_S)  # the sender may see the end first
        for version, by in ((3, 1.0), (4, 2.0)):
            report = sender.send(changed(first, by), version, timeout_s=WITHIN_S)
            assert report.failed == {}
            weights = receiver.receive(WITHIN_S)
            assert weights.version == version
            assert same(weights.data, changed(first, by))


@pytest.mark.parametrize("credit_bytes", [300_000, 5_000])
def test_deltas_keep_to_the_credit_of_the_plan(credit_bytes: int) -> None:
    """Buckets of a delta once were larger than the credit, so that nothing was sent until the time-out."""
    first = state_of(1, 1)
    plan = planned(first, credit_bytes)
    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], plan=plan, token="secret", deltas=delta_plan("ask")) as sender,
    ):
        for version, state in enumerate((first, changed(first, 1.0)), start=1):
            assert sender.send(state, version, timeout_s=WITHIN_S).failed == {}
            assert same(receiver.receive(WITHIN_S).data, state)


def test_changes_in_too_many_places_are_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are would not fit a message; the receiver has the version all the same."""
    monkeypatch.setattr(deltas_module, "_MOST_STRETCHES", 10)
    sent: list[Any] = []
    with (
        StateReceiver(token="secret") as receiver,
        StateSender([receiver.address], token="secret", deltas=delta_plan("ask")) as sender,
    ):
        first = state_of(1, 2)
        second = {name: tensor.clone() for name, tensor in first.items()}
        second["embed"][::5] += 1
        for version, state in enumerate((first, second), start=1):
            report = sender.send(state, version, timeout_s=WITHIN_S)
            assert report.failed == {}
            sent.append(report.sent_bytes["sender"])
            assert same(receiver.receive(WITHIN_S).data, state)
    assert sent[0] == sent[1]


def test_a_state_dict_without_any_element_arrives() -> None:
    """No bucket at all, and tensors of no elements."""
    for state in ({}, {"none": torch.empty(0, 3), "nothing": torch.empty(4, 0, dtype=torch.int8)}):
        with (
            StateReceiver(token="secret") as receiver,
            StateSender([receiver.address], token="secret") as sender,
        ):
            assert sender.send(state, 1, timeout_s=WITHIN_S).failed == {}
            assert same(receiver.receive(WITHIN_S).data, state)
