"""State dicts from a sender to receivers: equal to the bit, whole or not at all, agreed on before."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from pace.errors import InvalidUse, ScheduleMismatch
from pace_sync.documents.sync_plan import SyncPlan
from pace_sync.documents.weight_sync import SyncHost, SyncReceiver, WeightSync, WorkRate
from pace_sync.planning.plan import plan_sync
from pace_sync.weight_sync import StateReceiver, StateSender, sync_tensors
from tests.pace_fabric.runtime.processes import WITHIN_S
from tests.pace_sync.weight_sync.state_process import state_of
from tests.runtime.programs import ForkedProgram


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether state dicts are equal to the bit, types, shapes and order included."""
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def planned(state: dict[str, torch.Tensor], credit_bytes: int | None) -> SyncPlan:
    """Return a plan for two receivers over a slow link, so that buckets are many."""
    work = (WorkRate(kind="copy", seconds_per_byte=1e-9),)
    return plan_sync(
        WeightSync(
            name="test",
            tensors=sync_tensors(state),
            sender=SyncHost(bytes_per_s=1e8),
            receivers=tuple(SyncReceiver(name=name, bytes_per_s=1e8, work=work) for name in "ab"),
            message_s=1e-6,
            credit_bytes=credit_bytes,
        )
    )


@pytest.mark.parametrize("credit_bytes", [None, 300_000])
@pytest.mark.parametrize("direct", [False, True])
def test_versions_arrive_bit_equal(credit_bytes: int | None, direct: bool) -> None:
    """Two versions to three receivers in the buckets of a plan, in a chain and directly."""
    plan = planned(state_of(0, 1), credit_bytes)
    assert len(plan.buckets) > 3
    receivers = [StateReceiver(token="secret") for _ in range(3)]
    try:
        addresses = [receiver.address for receiver in receivers]
        with StateSender(addresses, plan=plan, token="secret", direct=direct) as sender:
            for version in (1, 2):
                report = sender.send(state_of(version, 1), version, timeout_s=WITHIN_S)
                assert report.failed == {}
                for receiver in receivers:
                    weights = receiver.receive(WITHIN_S)
                    assert weights.version == version
                    assert same(weights.data, state_of(version, 1))
    finally:
        for receiver in receivers:
            receiver.close()


def test_receivers_cast_to_their_own_types() -> None:
    """Float32 weights become an engine's bfloat16 ones, and are loaded without another copy."""
    torch.manual_seed(0)
    trained, engine = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20, dtype=torch.bfloat16)
    with (
        StateReceiver(token="secret", like=engine.state_dict()) as receiver,
        StateSender([receiver.address], token="secret") as sender,
    ):
        assert sender.send(trained.state_dict(), 1, timeout_s=WITHIN_S).failed == {}
        weights = receiver.receive(WITHIN_S).data
    engine.load_state_dict(weights, assign=True)
    assert torch.equal(engine.weight, trained.weight.to(torch.bfloat16))
    assert engine.weight.data_ptr() == weights["weight"].data_ptr()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"weight": torch.zeros(3)}, 'the sender has no tensor "bias"'),
        ({"weight": torch.zeros(3), "bias": torch.zeros(2)}, 'tensor "bias" has shape'),
        ({"weight": torch.zeros(3), "bias": torch.zeros(1), "more": torch.zeros(1)}, '"more", which is not'),
    ],
)
def test_other_models_are_refused_before_the_first_byte(state: dict[str, torch.Tensor], said: str) -> None:
    """By name, and the receiver that expects these weights has them."""
    expected = {"weight": torch.ones(3), "bias": torch.ones(1)}
    with (
        StateReceiver(token="secret", like=expected) as strict,
        StateReceiver(token="secret") as loose,
        StateSender([strict.address, loose.address], token="secret") as sender,
    ):
        report = sender.send(state, 1, timeout_s=WITHIN_S)
        assert said in report.failed[strict.address]
        assert list(report.failed) == [strict.address]
        assert report.received_bytes[strict.address] == 0
        assert same(loose.receive(WITHIN_S).data, state)


def test_what_cannot_be_sent_is_refused() -> None:
    """With the tensor's name and what to do."""
    with StateReceiver(token="secret") as receiver:
        with StateSender([receiver.address], token="secret") as sender:
            strange: dict[str, Any] = {"extra": {"step": 1}}
            with pytest.raises(InvalidUse, match='"extra" is a dict'):
                sender.send(strange, 1)
            with pytest.raises(InvalidUse, match=r'"w" is torch\.sparse_coo'):
                sender.send({"w": torch.zeros(2, 2).to_sparse()}, 1)
        plan = planned(state_of(0, 1), None)
        with StateSender([receiver.address], token="secret", plan=plan) as sender:
            with pytest.raises(ScheduleMismatch, match='sends tensor "embed", which the state dict'):
                sender.send({"w": torch.zeros(2)}, 1)
            with pytest.raises(ScheduleMismatch, match='"embed" has 500000 bytes, the plan sends 250000'):
                sender.send(state_of(1, 2), 1)


class End(ForkedProgram):
    """One end as a process."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("file", Path(__file__).with_name("state_process.py"), *arguments)
        self._read = 0

    def next_line(self) -> str:
        """Return the next line that it prints."""
        self._read += 1
        return self.line(self._read - 1)


@pytest.mark.slow
def test_a_killed_sender_leaves_whole_versions(tmp_path: Path) -> None:
    """100 MB to two receivers, bit-equal; the sender is killed in the next version: they keep the old one."""
    files = [tmp_path / "one", tmp_path / "two"]
    receivers = [End("receive", file) for file in files]
    sender: End | None = None
    try:
        addresses = [receiver.next_line() for receiver in receivers]
        sender = End("send", 100, *addresses)
        assert sender.next_line() == "1 []"
        assert sender.process.wait(WITHIN_S) == -signal.SIGKILL
        for receiver, file in zip(receivers, files, strict=True):
            assert receiver.next_line() == "1"
            assert same(torch.load(file), state_of(1, 100))
        # They live, and take weights of another sender; what was staged of version 2 is forgotten.
        with StateSender(addresses, token="secret") as other:
            assert other.send(state_of(3, 1), 3, timeout_s=WITHIN_S).failed == {}
        for receiver, file in zip(receivers, files, strict=True):
            assert receiver.next_line() == "3"
            assert same(torch.load(file), state_of(3, 1))
    finally:
        for end in (*receivers, *([] if sender is None else [sender])):
            end.close()


def test_a_version_that_changes_while_it_is_sent_reaches_nobody() -> None:
    """100 MB, written in place with the same values all the time: every hash is right, and it is refused."""
    state = {f"layer{number}": torch.full((1_000_000,), float(number)) for number in range(25)}
    ended = threading.Event()

    def train() -> None:
        while not ended.is_set():
            state["layer3"].add_(0.0)

    training = threading.Thread(target=train)
    with StateReceiver(token="secret") as receiver, StateSender([receiver.address], token="secret") as sender:
        training.start()
        with pytest.raises(InvalidUse, match='"layer3" was changed while it was sent'):
            sender.send(state, 1, timeout_s=WITHIN_S)
        ended.set()
        training.join()
        assert sender.send(state, 2, timeout_s=WITHIN_S).failed == {}
        weights = receiver.receive(WITHIN_S)
    assert weights.version == 2
    assert same(weights.data, state)
