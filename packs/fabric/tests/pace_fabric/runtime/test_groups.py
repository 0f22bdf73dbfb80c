"""Groups: members come, miss rounds, die and come back, and all that are there have the same bytes."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse, RoundMissed
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.group_member import GroupMember
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from tests.pace_fabric.runtime.processes import WITHIN_S, Fabric

QUICK = SchedulerOptions(tick_s=0.02)
NUMBERS = 1000


class Trainer:
    """A model that moves by the mean of every round, and what a newcomer needs of it."""

    def __init__(
        self,
        fabric: FabricClient,
        *,
        members: int,
        quorum: int | None = None,
        deadline_s: float | None = None,
        numbers: int = NUMBERS,
    ) -> None:
        self.model: Vector = np.zeros(numbers, dtype=np.float32)
        self.member = GroupMember(
            fabric,
            "outer",
            members=members,
            quorum=quorum,
            deadline_s=deadline_s,
            give_state=lambda: self.model.tobytes(),
            timeout_s=WITHIN_S,
        )

    def join(self) -> bool:
        """Become a member; return whether as a newcomer."""
        state = self.member.join()
        if state is not None:
            self.model = np.frombuffer(state, dtype=np.float32).copy()
            self.step(None)
        return state is not None

    def step(self, change: float | Vector | None, weight: float = 1.0) -> None:
        """Take part in a round."""
        if isinstance(change, float):
            change = np.full(len(self.model), change, dtype=np.float32)
        self.model = self.model + self.member.mean(change, weight=weight)


def together(*calls: Callable[[], object]) -> list[object]:
    """Return what calls at the same time return."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


def test_a_group_begins_together_and_means_are_weighted(tmp_path: Path) -> None:
    """Three members on two hosts: every round is the weighted mean, with the same bytes for all."""
    rng = np.random.default_rng(0)
    with Fabric(tmp_path, 2, QUICK) as fabric:
        group = [Trainer(fabric.client(host, f"w{n}"), members=3) for n, host in enumerate((0, 0, 1))]
        assert together(*(each.join for each in group)) == [False, False, False]
        expected = np.zeros(NUMBERS)
        for number in range(1, 4):
            assert [each.member.round for each in group] == [number] * 3
            changes = rng.normal(size=(3, NUMBERS)).astype(np.float32)
            steps = [
                lambda each=each, change=change, weight=weight: each.step(change, weight)
                for each, change, weight in zip(group, changes, (1.0, 2.0, 5.0), strict=True)
            ]
            together(*steps)
            expected += np.average(changes.astype(np.float64), axis=0, weights=(1, 2, 5))
        assert len({each.model.tobytes() for each in group}) == 1
        assert np.allclose(group[0].model, expected, atol=1e-5)


def test_rounds_go_on_when_a_member_leaves_or_its_process_ends(tmp_path: Path) -> None:
    """Neither one that leaves nor one whose connection ends is waited for, though there is no deadline."""
    with Fabric(tmp_path, 2, QUICK) as fabric:
        clients = [fabric.client(n % 2, f"w{n}") for n in range(4)]
        group = [Trainer(client, members=4, quorum=2) for client in clients]
        together(*(each.join for each in group))
        together(*(lambda each=each: each.step(1.0) for each in group))
        clients[3].close()
        group[2].member.leave()
        together(*(lambda each=each: each.step(1.0) for each in group[:2]))
        assert group[0].model[0] == group[1].model[0] == 2.0
        with pytest.raises(InvalidUse, match=r"before join\(\)"):
            group[2].step(1.0)


def test_a_member_that_is_late_misses_the_round_and_joins_again(tmp_path: Path) -> None:
    """Others wait for it for one deadline; then it is told, gets their state, and goes on with them."""
    with Fabric(tmp_path, 2, QUICK) as fabric:
        group = [
            Trainer(fabric.client(n % 2, f"w{n}"), members=3, quorum=2, deadline_s=1.0) for n in range(3)
        ]
        together(*(each.join for each in group))
        together(*(lambda each=each: each.step(1.0) for each in group))
        together(*(lambda each=each: each.step(2.0) for each in group[:2]))
        assert fabric.status()["groups"]["outer"]["members"] == 2
        with pytest.raises(RoundMissed, match="join again"):
            group[2].step(100.0)
        assert group[2].member.round == 0
        with ThreadPoolExecutor(1) as thread:
            joined = thread.submit(group[2].join)
            fabric.wait(lambda status: status["groups"]["outer"]["joining"] == 1)
            together(*(lambda each=each: each.step(4.0) for each in group[:2]))
            assert joined.result() is True  # it takes the mean of the round that was open
        together(*(lambda each=each: each.step(1.0) for each in group))
        assert [each.model[0] for each in group] == [8.0, 8.0, 8.0]


def test_a_round_waits_for_its_quorum_and_a_newcomer_makes_it(tmp_path: Path) -> None:
    """Two of a quorum of three are left: their round ends when a new worker has joined."""
    with Fabric(tmp_path, 2, QUICK) as fabric:
        clients = [fabric.client(n % 2, f"w{n}") for n in range(3)]
        group = [Trainer(client, members=3, deadline_s=0.2) for client in clients]
        together(*(each.join for each in group))
        clients[2].close()
        fresh = Trainer(fabric.client(0, "w2"), members=3, deadline_s=0.2)
        fabric.wait(lambda status: status["groups"]["outer"]["members"] == 2)
        with ThreadPoolExecutor(2) as threads:
            steps = [threads.submit(each.step, 3.0) for each in group[:2]]
            fabric.wait(lambda status: status["groups"]["outer"]["arrived"] == 2)
            assert not any(step.done() for step in steps)
            assert fresh.join() is True
            for step in steps:
                step.result()
        assert [each.model[0] for each in (*group[:2], fresh)] == [3.0, 3.0, 3.0]
        assert fresh.member.round == 2


def test_a_group_begins_with_its_quorum_after_a_deadline(tmp_path: Path) -> None:
    """The third member does not come: the group begins, from the state with the most rounds."""
    with Fabric(tmp_path, 1, QUICK) as fabric:
        group = [Trainer(fabric.client(0, f"w{n}"), members=3, quorum=1, deadline_s=0.5) for n in range(2)]
        group[0].model += np.float32(7.0)

        def begin() -> None:
            assert group[0].member.join(rounds=7) is None
            assert group[0].member.round == 8
            group[0].step(1.0)

        assert together(begin, group[1].join)[1] is True
        assert [each.model[0] for each in group] == [8.0, 8.0]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Other terms than those of the group, another size, no finite update, odd options."""
    with Fabric(tmp_path, 1, QUICK) as fabric:
        clients = [fabric.client(0, f"w{n}") for n in range(3)]
        group = [Trainer(client, members=2, quorum=1, deadline_s=5.0) for client in clients[:2]]
        together(*(each.join for each in group))
        with pytest.raises(CommunicationFailed, match=r"joins outer with 3 members.*others with 2 members"):
            Trainer(clients[2], members=3).join()
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(group[0].step, 1.0)
            fabric.wait(lambda status: status["groups"]["outer"]["arrived"] == 1)
            with pytest.raises(CommunicationFailed, match="has 3 numbers, others 1,000"):
                group[1].member.mean(np.ones(3, dtype=np.float32))
            with pytest.raises(InvalidUse, match="finite"):
                group[1].member.mean(np.full(NUMBERS, np.nan, dtype=np.float32))
            group[1].step(3.0)
            first.result()
        assert group[0].model[0] == group[1].model[0] == 2.0
        for wrong in ({"members": 0}, {"members": 2, "quorum": 3}, {"members": 1, "deadline_s": -1.0}):
            with pytest.raises(InvalidOptions):
                Trainer(clients[2], **wrong)


def test_a_state_that_cannot_be_given_ends_the_call_that_was_to_give_it(tmp_path: Path) -> None:
    """The error comes out of mean, and another member gives the state."""
    with Fabric(tmp_path, 1, QUICK) as fabric:
        clients = [fabric.client(0, f"w{n}") for n in range(3)]
        group = [Trainer(client, members=2, quorum=1) for client in clients]
        together(group[0].join, group[1].join)
        del group[0].model

        def fail() -> None:
            with pytest.raises(CommunicationFailed, match="no state for newcomers: AttributeError"):
                group[0].member.mean(np.ones(NUMBERS, dtype=np.float32))
            clients[0].close()

        with ThreadPoolExecutor(2) as threads:
            failing, joining = threads.submit(fail), threads.submit(group[2].join)
            failing.result()
            group[1].step(1.0)
            assert joining.result() is True
        assert group[1].model.tobytes() == group[2].model.tobytes()


@pytest.mark.slow
def test_a_group_outlives_its_scheduler(tmp_path: Path) -> None:
    """A new scheduler at the same address learns who is a member, and the round that was open ends."""
    with Fabric(tmp_path, 2, QUICK, killable=("scheduler",)) as fabric:
        group = [Trainer(fabric.client(n, f"w{n}"), members=2) for n in range(2)]
        together(*(each.join for each in group))
        together(*(lambda each=each: each.step(1.0) for each in group))
        place = fabric.place("scheduler")
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(group[0].step, 2.0)
            fabric.wait(lambda status: status["groups"]["outer"]["arrived"] == 1)
            fabric.kill("scheduler")
            fabric.start_scheduler((place.host, place.port))
            fabric.wait(lambda status: status["groups"].get("outer", {}).get("members") == 2)
            group[1].step(2.0)
            first.result()
        assert [each.model[0] for each in group] == [3.0, 3.0]


@pytest.mark.slow
def test_a_host_dies_while_100_mb_are_under_way(tmp_path: Path) -> None:
    """The round ends without what the dead host had, and those that are left have the same bytes."""
    numbers = 25_000_000
    with Fabric(tmp_path, 3, QUICK, killable=("h0", "h1", "h2")) as fabric:
        group = [
            Trainer(fabric.client(n, f"w{n}"), members=3, quorum=2, deadline_s=WITHIN_S, numbers=numbers)
            for n in range(3)
        ]
        together(*(each.join for each in group))
        ended = threading.Event()

        def kill() -> None:
            fabric.wait(lambda status: status["transfers"] > 0 or ended.is_set())
            fabric.kill("h2")

        def step(place: int) -> None:
            if place == 2:  # its host may die after it has handed the mean over
                with contextlib.suppress(CommunicationFailed):
                    group[2].step(float(place + 1))
            else:
                group[place].step(float(place + 1))
                ended.set()

        together(kill, *(lambda place=place: step(place) for place in range(3)))
        together(lambda: group[0].step(1.0), lambda: group[1].step(1.0))
        assert group[0].model.tobytes() == group[1].model.tobytes()
        assert group[0].model[0] in (2.5, 3.0)  # without what the dead host had, or with it
