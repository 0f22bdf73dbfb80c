"""Hosts on one machine: network namespaces joined by a bridge, every link shaped in both directions.

The bridge lives in a namespace of its own too, so that nothing of a testbed can be seen from the
machine's network, and nothing of that network from the testbed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from benchmarks.harness.network.names import NAMESPACES, SETTINGS, left_behind, new_prefix
from benchmarks.harness.prerequisites import TestbedUnavailable

INTERFACE = "eth0"
# Joins hosts of one replica, where there is such a link.
INNER_INTERFACE = "inner0"
MAX_HOSTS = 250

# A sender that was silent may be ahead of the rate by so much. With more, short messages pass as if nothing
# were shaped. It must hold a whole packet as the host hands it down, or the bucket loses rate: so those are
# kept smaller than the usual 64 KiB.
BURST_MS = 1
PACKET_BYTES = 16 * 1024
LEAST_PACKET_BYTES = 1514  # of a full frame
QUEUE_MS = 100
# Where every host has a queue of its own. What waits there before the slower of two links is a lead over
# those who come later, worth n times as long once n share the faster link; 1 ms loses half of the rate where
# the machine is busy.
FAIR_QUEUE_MS = 3
# There, losses are frequent and one end is a millisecond from the other: the usual 200 ms before a packet is
# sent again, where no later one is acknowledged, would be most of what a short transfer takes.
FAIR_RESEND_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How a host is joined to the others, the same in both directions.

    Attributes
    ----------
    rate_mbit_s
        10^6 bits in a second, headers included.
    delay_ms, jitter_ms, loss
        Added to every packet that the host sends; need the kernel's netem. `loss` is a fraction.
    packet_bytes
        The largest packet that the host hands down. Connections that share a link take turns by packets:
        the smaller these are, the more alike are their shares, and the more a packet costs.
    burst_ms
        So much of what it did not carry while idle does a link let through at once.
    fair
        Whether hosts that share it take turns, with acknowledgements first, as where switches and hosts have
        fair queues (Linux: fq, fq_codel); otherwise all wait in one queue.
    """

    rate_mbit_s: float
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    packet_bytes: int = PACKET_BYTES
    burst_ms: float = BURST_MS
    fair: bool = False

    def __post_init__(self) -> None:
        times = (self.delay_ms, self.jitter_ms, self.burst_ms)
        if not self.rate_mbit_s > 0 or min(times) < 0 or not 0 <= self.loss < 1:
            raise ValueError(f"{self}: expected a positive rate, no negative times, a loss in [0, 1)")
        if self.packet_bytes < LEAST_PACKET_BYTES:
            raise ValueError(f"{self}: expected a positive rate and packets of {LEAST_PACKET_BYTES} bytes")
        if self.fair and self.emulated:
            raise ValueError(f"{self}: delay, jitter and loss are for links of one queue")

    @property
    def emulated(self) -> bool:
        """Whether delay, jitter or loss are emulated besides the rate."""
        return bool(self.delay_ms or self.jitter_ms or self.loss)

    @property
    def burst_bytes(self) -> int:
        """What the link lets through at once after a pause: at least a packet as the host hands it down."""
        return max(round(self.rate_mbit_s * 1e3 / 8 * self.burst_ms), self.packet_bytes * 5 // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host: its namespace, the name under which the others find it, its address and link."""

    namespace: str
    name: str
    address: str
    link: Link

    @property
    def hosts_file(self) -> Path:
        """Content of /etc/hosts for processes on this host."""
        return SETTINGS / self.namespace / "hosts"

    @property
    def port(self) -> tuple[str, str]:
        """The switch's namespace, and the device there that leads to this host."""
        prefix, _, number = self.namespace.rpartition("-host")
        return f"{prefix}-switch", f"port{number}"


def why_unavailable() -> str | None:
    """Say in one line why no testbed can be made here and what would help; None when one can."""
    if os.geteuid() != 0:
        return "the testbed makes network namespaces, which needs root: run it with sudo"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the testbed needs `{program}`: apt-get install iproute2"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", "ip link add type bridge && ip link add type veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        return (
            f"this machine allows no network namespaces ({tried.stderr.strip()}):"
            " a container needs --privileged, or run on the machine itself"
        )
    return None


@contextlib.contextmanager
def hosts(links: Sequence[Link]) -> Iterator[list[Host]]:
    """Make one host for each link, all joined by one switch, and take them away again.

    Also after an exception, SIGINT or SIGTERM; what a killed process left behind goes when the
    next testbed is made. Names that no testbed made are never touched.

    Raises
    ------
    TestbedUnavailable
        When this machine cannot make them; the message says what would help.
    """
    reason = why_unavailable()
    if reason is not None:
        raise TestbedUnavailable(reason)
    if not 1 <= len(links) <= MAX_HOSTS:
        raise ValueError(f"{len(links)} hosts: expected 1 to {MAX_HOSTS}")
    for name in left_behind():
        _remove(name)
    prefix = new_prefix()
    made = [
        Host(namespace=f"{prefix}-host{n}", name=f"host{n}", address=f"10.77.0.{n + 1}", link=link)
        for n, link in enumerate(links)
    ]
    switch = f"{prefix}-switch"
    with _terminated_as_exception():
        try:
            _make(made, switch)
            yield made
        finally:
            with _uninterrupted():
                for name in [*(host.namespace for host in made), switch]:
                    _remove(name)


def _make(made: Sequence[Host], switch: str) -> None:
    addresses = "".join(f"{host.address} {host.name}\n" for host in made)
    for host in made:
        host.hosts_file.parent.mkdir(parents=True)
        host.hosts_file.write_text(f"127.0.0.1 localhost\n{addresses}")
    for name in [switch, *(host.namespace for host in made)]:
        _run("ip", "netns", "add", name)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")
    for number, host in enumerate(made):
        port = f"port{number}"
        _run(
            *("ip", "link", "add", INTERFACE, "netns", host.namespace),
            *("type", "veth", "peer", "name", port, "netns", switch),
        )
        _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        for device in ("lo", INTERFACE):
            _run("ip", "-n", host.namespace, "link", "set", device, "up")
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        others = [other.address for other in made if other is not host]
        if host.link.fair:
            subnet = ("10.77.0.0/24", "dev", INTERFACE, "src", host.address)
            _run("ip", "-n", host.namespace, "route", "change", *subnet, "rto_min", f"{FAIR_RESEND_MS}ms")
        _shape(host.namespace, INTERFACE, host.link, others, "dst")
        _shape(switch, port, Link(rate_mbit_s=host.link.rate_mbit_s, fair=host.link.fair), others, "src")
        _choose_congestion_control(host.namespace)


def join_directly(members: Sequence[Host], *, rate_mbit_s: float | None = None) -> list[Host]:
    """Give hosts a switch of their own beside the one of all; return them as they are seen there.

    Parameters
    ----------
    rate_mbit_s
        Rate of every link to that switch, in 10^6 bits in a second, both ways. Without one these links are
        not shaped, as fast as this machine.
    """
    switch, first = members[0].port
    bridge = first.replace("port", "within")
    _run("ip", "-n", switch, "link", "add", bridge, "type", "bridge")
    _run("ip", "-n", switch, "link", "set", bridge, "up")
    joined = []
    for host in members:
        port = host.port[1].replace("port", "inner")
        address = host.address.replace("10.77.", "10.78.")
        _run(
            *("ip", "link", "add", INNER_INTERFACE, "netns", host.namespace),
            *("type", "veth", "peer", "name", port, "netns", switch),
        )
        _run("ip", "-n", host.namespace, "address", "add", f"{address}/24", "dev", INNER_INTERFACE)
        _run("ip", "-n", host.namespace, "link", "set", INNER_INTERFACE, "up")
        _run("ip", "-n", switch, "link", "set", port, "master", bridge, "up")
        if rate_mbit_s is not None:
            link = Link(rate_mbit_s=rate_mbit_s)
            _shape(host.namespace, INNER_INTERFACE, link, (), "dst")
            _shape(switch, port, link, (), "src")
            host = replace(host, link=link)  # as it is seen there
        joined.append(replace(host, address=address))
    return joined


def reshape(host: Host, *, up_mbit_s: float, down_mbit_s: float) -> None:
    """Change what a host's link of one queue carries from now on, each way; connections stay."""
    if host.link.fair:
        raise ValueError(f"{host.name}: only links of one queue are reshaped")
    _limit(host.namespace, INTERFACE, replace(host.link, rate_mbit_s=up_mbit_s), "change")
    _limit(*host.port, replace(host.link, rate_mbit_s=down_mbit_s), "change")


def _limit(namespace: str, device: str, link: Link, verb: Literal["add", "change"]) -> None:
    _run(
        *("tc", "-n", namespace, "qdisc", verb, "dev", device, "root", "handle", "1:", "tbf"),
        *("rate", _bits_s(link.rate_mbit_s), "burst", str(link.burst_bytes), "latency", f"{QUEUE_MS}ms"),
    )


def _bits_s(rate_mbit_s: float) -> str:
    return f"{round(rate_mbit_s * 1e6)}bit"


def _take_turns(
    namespace: str, device: str, link: Link, others: Sequence[str], end: Literal["src", "dst"]
) -> None:
    """Give every other host a queue of its own, and one to acknowledgements, which goes first."""
    whole, burst = _bits_s(link.rate_mbit_s), link.burst_bytes
    limits = f"ceil {whole} burst {burst} cburst {burst}"
    share = _bits_s(link.rate_mbit_s / (len(others) + 2))
    # A queue that is shorter than a packet lets none through.
    size = max(round(link.rate_mbit_s * 1e3 / 8 * FAIR_QUEUE_MS), 4 * link.packet_bytes)
    commands = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {whole} {limits}",
    ]
    own = [f"{16 + number:x}" for number in range(len(others))]
    for queue, turn in (("2", 1), ("3", 0), *((each, 1) for each in own)):
        commands += [
            f"class add dev {device} parent 1:1 classid 1:{queue} htb rate {share} {limits}"
            f" prio {turn} quantum {link.packet_bytes}",
            f"qdisc add dev {device} parent 1:{queue} bfifo limit {size}",
        ]
    filtered = f"filter add dev {device} parent 1: protocol ip"
    # Packets of less than 64 bytes.
    commands.append(f"{filtered} prio 1 u32 match u16 0x0000 0xffc0 at 2 flowid 1:3")
    for queue, other in zip(own, others, strict=True):
        commands.append(f"{filtered} prio 2 u32 match ip {end} {other}/32 flowid 1:{queue}")
    _run("tc", "-n", namespace, "-batch", "-", text="\n".join(commands))


def _shape(
    namespace: str, device: str, link: Link, others: Sequence[str], end: Literal["src", "dst"]
) -> None:
    size = str(link.packet_bytes)
    _run("ip", "-n", namespace, "link", "set", device, "gso_max_size", size, "gro_max_size", size)
    if link.fair:
        _take_turns(namespace, device, link, others, end)
        return
    _limit(namespace, device, link, "add")
    if not link.emulated:
        return
    netem = ["netem", "delay", f"{link.delay_ms}ms", f"{link.jitter_ms}ms", "loss", f"{link.loss:%}"]
    try:
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "parent", "1:1", *netem)
    except TestbedUnavailable as error:
        raise TestbedUnavailable(
            f"delay, jitter and loss need netem, which this kernel refuses ({error}): load the module"
            " sch_netem, or leave them out"
        ) from None


def _choose_congestion_control(namespace: str) -> None:
    # The same everywhere, whatever this machine was set to: cubic is what distributions ship. A namespace
    # may be refused it (its own list of allowed ones decides), never reno, which differs only after losses.
    setting = "/proc/sys/net/ipv4/tcp_congestion_control"
    command = f"for each in cubic reno; do echo $each > {setting} && exit; done 2>/dev/null"
    _run("ip", "netns", "exec", namespace, "sh", "-c", command)


def congestion_control(host: Host) -> str:
    """Return the TCP congestion control that connections from this host use."""
    command = ["ip", "netns", "exec", host.namespace, "cat", "/proc/sys/net/ipv4/tcp_congestion_control"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, input=text, check=False)
    if done.returncode != 0:
        raise TestbedUnavailable(f"`{' '.join(command)}`: {done.stderr.strip()}")


def _remove(name: str) -> None:
    if (NAMESPACES / name).exists():
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    shutil.rmtree(SETTINGS / name, ignore_errors=True)


@contextlib.contextmanager
def _terminated_as_exception() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as SIGINT does; only a main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
