"""How ranks on one GPU reach each other through a limited link, and share the GPU as if each had one."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import INTERFACE, Link, hosts
from benchmarks.harness.prerequisites import TestbedUnavailable

# All ranks' traffic passes the one loopback device. Its queue must hold what TCP sends at once.
LIMIT = "ip link set lo up && tc qdisc add dev lo root tbf rate {rate}mbit burst 256kb latency 200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How ranks reach each other.

    Attributes
    ----------
    prefix
        What the command that starts the ranks begins with.
    hosts
        Hosts of the ranks, as JSON has them; empty where ranks share one network.
    """

    shown: str
    prefix: tuple[str, ...] = ()
    interface: str = "lo"
    address: str = "127.0.0.1"
    hosts: tuple[dict[str, Any], ...] = ()


@contextlib.contextmanager
def wire(ranks: int, rate_mbit_s: float) -> Iterator[Wire]:
    """Make the best link that this machine allows, and take it away again."""
    with contextlib.ExitStack() as made:
        try:
            on = made.enter_context(hosts([Link(rate_mbit_s=rate_mbit_s)] * ranks))
        except (TestbedUnavailable, subprocess.CalledProcessError, OSError) as error:
            yield _loopback(ranks * rate_mbit_s, " ".join(str(error).split()))
            return
        yield Wire(
            shown=f"{ranks} network namespaces, joined at {rate_mbit_s:g} Mbit/s both ways by the kernel",
            interface=INTERFACE,
            address=on[0].address,
            hosts=tuple(asdict(host) for host in on),
        )


def _loopback(rate_mbit_s: float, why: str) -> Wire:
    limit = LIMIT.format(rate=round(rate_mbit_s))
    for unshare in (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net")):
        prefix = (*unshare, "sh", "-ec", f'{limit} && exec "$@"', "sh")
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                shown = f"loopback limited to {rate_mbit_s:g} Mbit/s for all ranks together ({why})"
                return Wire(shown=shown, prefix=prefix)
    return Wire(shown=f"loopback as fast as it is: this machine allows no limit ({why})")


MPS_END_S = 10.0


@contextlib.contextmanager
def side_by_side(work: Path) -> Iterator[bool]:
    """Start NVIDIA's MPS, with which processes share the GPU as if each had one; yield whether it runs."""
    control = shutil.which("nvidia-cuda-mps-control")
    # New ones each time: an earlier daemon may not have ended.
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    folders = {name: tempfile.mkdtemp(prefix="mps-", dir=work) for name in names}
    started = control is not None and (
        subprocess.run([control, "-d"], env=os.environ | folders, check=False).returncode == 0
    )
    if not started or control is None:
        yield False
        return
    os.environ.update(folders)
    try:
        yield True
    finally:
        # It may not answer after a rank was killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([control], input="quit\n", text=True, check=False, timeout=MPS_END_S)
        for name in names:
            del os.environ[name]
