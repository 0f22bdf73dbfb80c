"""Hosts are made, joined, shaped, and always taken away again; nothing else is touched."""

import contextlib
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.network.hosts import Host, Link, hosts, reshape
from benchmarks.harness.network.names import NAMESPACES, SETTINGS, Owner, owner_of
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.harness.network.rates import measure_rates, verify_rates
from benchmarks.harness.prerequisites import TestbedUnavailable, WrongRate

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


def test_hosts_find_each_other_by_name(two_hosts: list[Host]) -> None:
    """Every host's hosts file names all of them with the addresses they have."""
    for host in two_hosts:
        assert host.address in on_host(host, "ip", "-4", "address", "show", "eth0")
        for other in two_hosts:
            assert f"{other.address} {other.name}" in on_host(host, "cat", "/etc/hosts")


def test_links_can_be_reshaped(two_hosts: list[Host]) -> None:
    """Each way gets its own rate at once, and the first ones come back."""
    host = two_hosts[0]
    switch, device = host.port
    show = ("tc", "-n", switch, "qdisc", "show", "dev", device)
    reshape(host, up_mbit_s=30, down_mbit_s=40)
    assert "rate 30Mbit" in on_host(host, "tc", "qdisc", "show", "dev", "eth0")
    assert "rate 40Mbit" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    reshape(host, up_mbit_s=host.link.rate_mbit_s, down_mbit_s=host.link.rate_mbit_s)
    assert "rate 200Mbit" in on_host(host, "tc", "qdisc", "show", "dev", "eth0")


def test_nothing_of_it_shows_on_the_machine(two_hosts: list[Host]) -> None:
    """No interface and no address of the testbed is in the machine's own network."""
    shown = subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout
    assert "bridge" not in shown
    assert not any(f"{host.address}/" in shown for host in two_hosts)


def test_links_are_shaped_in_both_directions(two_hosts: list[Host]) -> None:
    """The kernel holds each host's rate at the host and at its port of the switch."""
    switch = two_hosts[0].namespace.removesuffix("host0") + "switch"
    for number, (host, rate) in enumerate(zip(two_hosts, ("200Mbit", "100Mbit"), strict=True)):
        at_host = on_host(host, "tc", "qdisc", "show", "dev", "eth0")
        assert re.search(rf"tbf .*rate {rate}", at_host)
        port = subprocess.run(
            ["tc", "-n", switch, "qdisc", "show", "dev", f"port{number}"], capture_output=True, text=True
        )
        assert re.search(rf"tbf .*rate {rate}", port.stdout)


def test_no_transfer_exceeds_the_slower_of_its_links(two_hosts: list[Host]) -> None:
    """Real transfers stay under the rate, which unshaped links exceed a hundredfold."""
    assert all(0 < rate < 1.05 * 100 for rate in measure_rates(two_hosts, seconds=1.0))


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


@pytest.mark.parametrize("rate_mbit_s", [100, 20])
def test_fair_links_carry_what_they_should(rate_mbit_s: float) -> None:
    """Queues of their own cost nothing of the rate, also where a packet is longer than they should be."""
    with hosts([Link(rate_mbit_s=rate_mbit_s, fair=True)] * 3) as on:
        verify_rates(on)
        with pytest.raises(ValueError, match="one queue"):
            reshape(on[0], up_mbit_s=10, down_mbit_s=10)


def _resends_after(rank: int, on: Sequence[Host]) -> Answer:
    """Answer after how many seconds the kernel would resend what the other host does not acknowledge."""
    listener = socket.create_server((on[rank].address, 5302))

    def answer(_request: str, _arguments: tuple[Any, ...]) -> float:
        with listener, socket.create_connection((on[1 - rank].address, 5302)) as connection:
            # After the first round trips the kernel's estimate is that of this link.
            for _ in range(20):
                connection.sendall(b"x")
                time.sleep(0.02)
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 12)
            (microseconds,) = struct.unpack_from("=I", info, 8)
            return float(microseconds) * 1e-6

    return answer


@pytest.mark.parametrize("fair", [True, False])
def test_fair_links_resend_soon(fair: bool) -> None:
    """Elsewhere the kernel's usual 200 ms hold."""
    with (
        hosts([Link(rate_mbit_s=100, fair=fair)] * 2) as on,
        ranks("resending", on, _resends_after, on) as group,
    ):
        for after_s in group.ask("tell", timeout_s=60):
            assert (after_s < 0.1) is fair


def test_a_link_that_is_not_shaped_as_told_is_refused() -> None:
    """Verification compares what links carry with what they should, not with what was typed into tc."""
    with hosts([Link(rate_mbit_s=50)] * 2) as on:
        for host in on:
            change = "tc qdisc change dev eth0 root handle 1: tbf rate 20mbit burst 32kb latency 100ms"
            on_host(host, *shlex.split(change))
        with pytest.raises(WrongRate, match="host0 sent"):
            verify_rates(on)


def test_delay_works_or_is_refused_by_name() -> None:
    """A kernel without netem is told from one with it, and nothing stays in either case."""
    before = names_of(Owner.this())
    shown = refused = ""
    try:
        with hosts([Link(rate_mbit_s=100, delay_ms=5), Link(rate_mbit_s=100)]) as on:
            shown = on_host(on[0], "tc", "qdisc", "show", "dev", "eth0")
    except TestbedUnavailable as error:
        refused = str(error)
    assert "delay 5ms" in shown or "netem" in refused
    assert names_of(Owner.this()) == before


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
