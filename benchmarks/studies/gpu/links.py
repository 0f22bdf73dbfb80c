"""The link between two ranks on one machine: a network namespace each, else a limited loopback, else none.

This module is loaded before torch in every rank: entering a namespace is for a process with one thread.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.network.enter import enter
from benchmarks.harness.network.errors import TestbedUnavailable
from benchmarks.harness.network.hosts import INTERFACE, Host, Link, hosts

# Both ranks' traffic passes the one loopback device. Its queue must hold what TCP sends at once.
LIMIT = "ip link set lo up && tc qdisc add dev lo root tbf rate {twice}mbit burst 256kb latency 200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How two ranks reach each other.

    Attributes
    ----------
    prefix
        What the command that starts both ranks begins with.
    hosts
        What ``become`` takes, for each rank; empty where ranks share one network.
    rate_mbit_s
        In each direction; None where nothing limits it.
    """

    shown: str
    prefix: tuple[str, ...]
    interface: str
    address: str
    rate_mbit_s: float | None
    hosts: tuple[dict[str, Any], ...] = ()


@contextlib.contextmanager
def wire(rate_mbit_s: float) -> Iterator[Wire]:
    """Make the best link that this machine allows, and take it away again."""
    with contextlib.ExitStack() as made:
        try:
            on = made.enter_context(hosts([Link(rate_mbit_s=rate_mbit_s)] * 2))
        except (TestbedUnavailable, subprocess.CalledProcessError, OSError) as error:
            yield _loopback(rate_mbit_s, " ".join(str(error).split()))
            return
        yield Wire(
            shown=f"two network namespaces, joined at {rate_mbit_s:g} Mbit/s both ways by the kernel",
            prefix=(),
            interface=INTERFACE,
            address=on[0].address,
            rate_mbit_s=rate_mbit_s,
            hosts=tuple(asdict(host) for host in on),
        )


def _loopback(rate_mbit_s: float, why: str) -> Wire:
    limit = LIMIT.format(twice=round(2 * rate_mbit_s))
    for unshare in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        prefix = (*unshare, "sh", "-ec", f'{limit} && exec "$@"', "sh")
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                shown = f"loopback limited to {2 * rate_mbit_s:g} Mbit/s for both ranks together ({why})"
                return Wire(
                    shown=shown, prefix=prefix, interface="lo", address="127.0.0.1", rate_mbit_s=rate_mbit_s
                )
    shown = f"loopback as fast as it is: this machine allows no limit ({why})"
    return Wire(shown=shown, prefix=(), interface="lo", address="127.0.0.1", rate_mbit_s=None)


def become(host: dict[str, Any]) -> None:
    """Move this process to a host's network; before it starts any thread."""
    enter(Host(**(host | {"link": Link(**host["link"])})))
