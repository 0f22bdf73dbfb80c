"""Hosts are made, joined, shaped, and always taken away again; nothing else is touched."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.network.hosts import Host, Link, hosts
from benchmarks.harness.network.names import NAMESPACES, SETTINGS, Owner, owner_of
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.network.rates import verify_rates
from benchmarks.harness.prerequisites import WrongRate

pytestmark = [
    pytest.mark.netns,
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.races_with_machine(
        reason="real processes on network namespaces must answer within their time-outs"
    ),
]

ROOT = Path(__file__).parents[2]


def on_host(host: Host, *command: str) -> str:
    """Run a command as `ip netns exec` does and return what it prints."""
    done = subprocess.run(["ip", "netns", "exec", host.namespace, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_of(owner: Owner) -> set[str]:
    """Return what is there of a process's testbeds."""
    found = {entry.name for folder in (NAMESPACES, SETTINGS) if folder.is_dir() for entry in folder.iterdir()}
    return {name for name in found if owner_of(name) == owner}


def _sends(rank: int, on: Sequence[Host], connections: Sequence[int]) -> Answer:
    """Send to the last host over so many connections; it answers what it received from each host."""
    last = on[-1]
    listener = socket.create_server((on[rank].address, 5301))

    def send() -> Counter[str]:
        with contextlib.suppress(OSError), socket.create_connection((last.address, 5301)) as connection:
            while True:
                connection.sendall(bytes(1 << 16))
        return Counter()

    def receive() -> Counter[str]:
        received: Counter[str] = Counter()
        connection, (address, _) = listener.accept()
        with connection:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                size = len(connection.recv(1 << 16))
                received[address] += size
        return received

    def answer(_request: str, _arguments: tuple[Any, ...]) -> Counter[str]:
        receives = on[rank] is last
        count = sum(connections) if receives else connections[rank]
        with ThreadPoolExecutor(count) as pool:
            each = [pool.submit(receive if receives else send) for _ in range(count)]
            return sum((future.result() for future in each), Counter())

    return answer


def test_hosts_take_turns_on_a_fair_link() -> None:
    """A host with six connections gets no more of a link than one with a single connection."""
    with (
        hosts([Link(rate_mbit_s=50, fair=True)] * 3) as on,
        ranks("sharing", on, _sends, on, (6, 1)) as group,
    ):
        received = group.ask("send", timeout_s=60)[-1]
    many, one = (received[host.address] for host in on[:2])
    assert 0.7 < many / one < 1.4


def test_a_link_that_is_not_shaped_as_told_is_refused() -> None:
    """Verification compares what links carry with what they should, not with what was typed into tc."""
    with hosts([Link(rate_mbit_s=50)] * 2) as on:
        for host in on:
            change = "tc qdisc change dev eth0 root handle 1: tbf rate 20mbit burst 32kb latency 100ms"
            on_host(host, *shlex.split(change))
        with pytest.raises(WrongRate, match="host0 sent"):
            verify_rates(on)


def test_an_exception_takes_the_hosts_away() -> None:
    """Whatever happens inside, nothing stays."""
    before = names_of(Owner.this())
    during: set[str] = set()

    def break_down() -> None:
        with hosts([Link(rate_mbit_s=100)] * 3):
            during.update(names_of(Owner.this()) - before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_down()
    assert len(during) == 4
    assert names_of(Owner.this()) == before


@pytest.fixture
def another() -> Iterator["subprocess.Popen[str]"]:
    """A process that holds a testbed of two hosts."""
    program = (
        "import signal, time\n"
        # A shell's background jobs start with these ignored, and so would this one.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from benchmarks.harness.network.hosts import Link, hosts\n"
        "with hosts([Link(rate_mbit_s=100)] * 2):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def _owner(process: "subprocess.Popen[str]") -> Owner:
    names = [owner_of(entry.name) for entry in NAMESPACES.iterdir()]
    return next(owner for owner in names if owner is not None and owner.pid == process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_take_the_hosts_away(another: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Ctrl-C, a polite kill and a closed terminal all unwind."""
    owner = _owner(another)
    assert len(names_of(owner)) == 3
    another.send_signal(number)
    another.wait(timeout=30)
    assert names_of(owner) == set()


def test_what_a_killed_process_left_goes_next_time(another: "subprocess.Popen[str]") -> None:
    """SIGKILL leaves namespaces behind; the next testbed removes them, and nobody else's."""
    foreign = f"pace-testbed-foreign-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        owner = _owner(another)
        with hosts([Link(rate_mbit_s=100)]):
            assert len(names_of(owner)) == 3, "its owner lives"
        os.killpg(another.pid, signal.SIGKILL)
        another.wait()
        time.sleep(0.1)
        assert len(names_of(owner)) == 3
        with hosts([Link(rate_mbit_s=100)]):
            assert names_of(owner) == set()
        assert (NAMESPACES / foreign).exists()
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_mbit_s": 0},
        {"rate_mbit_s": 1, "loss": 1},
        {"rate_mbit_s": 1, "delay_ms": -1},
        {"rate_mbit_s": 1, "packet_bytes": 100},
        {"rate_mbit_s": 1, "burst_ms": -1.0},
    ],
)
def test_impossible_links_are_refused(wrong: dict[str, Any]) -> None:
    """A link needs a rate, and no negative time."""
    with pytest.raises(ValueError, match="expected a positive rate"):
        Link(**wrong)
