"""What tests of the testbed share: hosts, where this machine can make them."""

from collections.abc import Iterator
from itertools import count

import pytest

from benchmarks.harness.network.hosts import Host, Link, hosts, why_unavailable
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Gradient, Op, Profile


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip, with the reason, where no network namespaces can be made."""
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def two_hosts(namespaces: None) -> Iterator[list[Host]]:  # noqa: ARG001  # it skips
    """Two hosts whose links differ."""
    with hosts([Link(rate_mbit_s=200), Link(rate_mbit_s=100)]) as on:
        yield on


@pytest.fixture(scope="module")
def ports() -> Iterator[int]:
    """Ports of a host that no test has used."""
    return count(23000)


@pytest.fixture
def layered() -> Profile:
    """Three layers, four gradients: the middle layer has two; 12 + 5 + 4 elements, then 100."""
    return Profile(
        name="layered",
        workers=2,
        ops=(
            Op(name="bwd/loss", duration_s=0.001, stream="s"),
            Op(name="bwd/c", duration_s=0.004, stream="s"),
            Op(name="bwd/b.relu", duration_s=0.002, stream="s"),
            Op(name="bwd/b", duration_s=0.003, stream="s"),
            Op(name="bwd/a", duration_s=0.002, stream="s"),
            Op(name="bwd/input", duration_s=0.001, stream="s"),
            Op(name="fwd/input", duration_s=0.001, stream="s"),
            Op(name="fwd/a", duration_s=0.001, stream="s", waits_for=("a.weight",)),
            Op(name="fwd/b", duration_s=0.002, stream="s", waits_for=("b.weight", "b.bias")),
            Op(name="fwd/b.relu", duration_s=0.001, stream="s"),
            Op(name="fwd/c", duration_s=0.002, stream="s", waits_for=("c.weight",)),
        ),
        gradients=(
            Gradient(name="c.weight", size_bytes=48, producer="bwd/c"),
            Gradient(name="b.weight", size_bytes=20, producer="bwd/b"),
            Gradient(name="b.bias", size_bytes=16, producer="bwd/b"),
            Gradient(name="a.weight", size_bytes=400, producer="bwd/a"),
        ),
        allreduce=AffineAllReduce(latency_s=1e-4, seconds_per_byte=1e-6),
    )
