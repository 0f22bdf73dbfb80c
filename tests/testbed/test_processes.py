"""Ranks run on their hosts, answer together, and their failures are told."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.network.errors import RankFailed
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import Answer, ranks

pytestmark = [
    pytest.mark.netns,
    pytest.mark.races_with_machine(
        reason="real processes on network namespaces must answer within their time-outs"
    ),
]


def main(rank: int, secret: str) -> Answer:
    """Answer a few requests."""

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "where":
            return rank, secret, socket.gethostname(), socket.gethostbyname(socket.gethostname()), os.getpid()
        if request == "environment":
            return os.environ.get(arguments[0])
        if request == "fail" and rank == arguments[0]:
            raise ArithmeticError("it does not add up")
        if request == "die" and rank == arguments[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if request == "sleep":
            time.sleep(arguments[0])
        return None

    return answer


def refuse(rank: int) -> Answer:
    """Fail at once."""
    raise LookupError(f"rank {rank} has nothing to do")


def test_every_rank_is_on_its_host(two_hosts: list[Host]) -> None:
    """A rank has its host's name, which resolves to its host's address, and what was given to main."""
    with ranks("test", two_hosts, main, "secret") as group:
        replies = group.ask("where")
    assert [reply[:4] for reply in replies] == [
        (rank, "secret", host.name, host.address) for rank, host in enumerate(two_hosts)
    ]
    assert not any(Path(f"/proc/{reply[4]}").exists() for reply in replies), "ranks end with the block"


def test_idle_ranks_are_stopped(two_hosts: list[Host]) -> None:
    """Between requests ranks take no processor: they wait in the stopped state."""
    with ranks("test", two_hosts, main, "") as group:
        pids = [reply[4] for reply in group.ask("where")]
        deadline = time.monotonic() + 10
        states: set[str] = set()
        while states != {"T"} and time.monotonic() < deadline:
            states = {Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids}
        assert states == {"T"}


def test_the_environment_reaches_every_rank(two_hosts: list[Host]) -> None:
    """Settings are there before main runs, and only in the ranks."""
    with ranks("test", two_hosts, main, "", environment={"TESTBED_SETTING": "7"}) as group:
        assert group.ask("environment", "TESTBED_SETTING") == ["7", "7"]
    assert "TESTBED_SETTING" not in os.environ


@pytest.mark.parametrize(
    ("request_", "argument", "told"),
    [
        ("fail", 1, "rank 1 in fail.*it does not add up"),
        ("die", 0, "rank 0 died in die"),
        ("sleep", 30, "ranks .0, 1."),
    ],
)
def test_failures_are_told(two_hosts: list[Host], request_: str, argument: int, told: str) -> None:
    """An exception, a death and a missing answer name the rank and the request."""
    with ranks("test", two_hosts, main, "") as group, pytest.raises(RankFailed, match=f"(?s){told}"):
        group.ask(request_, argument, timeout_s=2.0)


def test_a_failing_main_is_told(two_hosts: list[Host]) -> None:
    """What main raises reaches the caller."""
    with pytest.raises(RankFailed, match="has nothing to do"), ranks("test", two_hosts, refuse):
        pass
