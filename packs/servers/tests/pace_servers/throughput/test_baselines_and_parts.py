"""What stands around the simulation: coarse models, overhead, placement, max-min sharing, conversion."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from pace import Profile, load_profile
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Gradient, Op
from pace.errors import InvalidOptions
from pace.solver.arrays import FloatArray
from pace.solver.kernels.max_min import share
from pace.solver.least_bytes import least_bytes_servers
from pace_servers.throughput import fit_overhead, simulate_steps, steps_from_profile
from pace_servers.throughput.coarse import bound_rate, closed_network_rate, cynthia_rate
from pace_servers.throughput.graph import with_servers
from tests.pace.documents.step_documents import MB, pull_compute_push
from tests.strategies import properties


@pytest.mark.parametrize(("workers", "rate"), [(1, 1 / 3), (3, 1.0), (6, 1.2)])
def test_cynthia(workers: int, rate: float) -> None:
    """Test I: compute of 2 s and transfers of 0.5 s each way."""
    assert cynthia_rate(2.0, 0.5, workers) == pytest.approx(rate)


@pytest.mark.parametrize(("workers", "rate"), [(1, 0.2857), (2, 0.4912), (3, 0.6298)])
def test_closed_network(workers: int, rate: float) -> None:
    """Test J: two links of 1 s each, and 1.5 s elsewhere."""
    assert closed_network_rate((1.0, 1.0), 1.5, workers) == pytest.approx(rate, abs=5e-5)


def test_bound() -> None:
    """Alone, a worker's step limits; together, the busiest link."""
    assert [bound_rate(4.0, (1.0, 0.5), workers) for workers in (1, 3, 8)] == [0.25, 0.75, 1.0]


def test_overhead_is_fitted() -> None:
    """Test G: three lone transfers."""
    fitted = fit_overhead([1e6, 4e6, 16e6], [1.2e-3, 3e-3, 10.2e-3])
    assert fitted.seconds_per_byte == pytest.approx(6e-10)
    assert fitted.seconds == pytest.approx(0.6e-3)
    with pytest.raises(InvalidOptions, match="one size"):
        fit_overhead([1e6, 1e6], [1e-3, 2e-3])


def test_overhead_is_never_negative() -> None:
    """Times that fall with the size give a line of no slope."""
    fitted = fit_overhead([1e6, 2e6], [2e-3, 1e-3])
    assert fitted.seconds_per_byte == 0
    assert fitted.seconds == pytest.approx(1.5e-3)


def test_vgg11_on_two_servers() -> None:
    """Test H: every tensor by itself, weights before biases, in order of creation."""
    channels = (3, 64, 128, 256, 256, 512, 512, 512, 512)
    sizes = []
    for before, after in pairwise(channels):
        sizes += [4 * 9 * before * after, 4 * after]
    for before, after in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        sizes += [4 * before * after, 4 * after]
    servers = least_bytes_servers(sizes, 2)
    load = [sum(s for s, at in zip(sizes, servers, strict=True) if at == server) for server in (0, 1)]
    assert sorted(total / 2**20 for total in load) == pytest.approx([100.20, 406.64], abs=0.005)


def max_min_rates(
    connections: list[tuple[int, int]], workers: list[float], servers: list[float], weights: list[float]
) -> FloatArray:
    """Return the rate of each (worker, server) when all share their links fairly."""
    first, second = np.array(connections, dtype=np.int64).T
    limit = np.array([*workers, *servers])
    scratch, users = np.empty((2, len(limit))), np.empty(len(limit), dtype=np.int64)
    rate = np.empty(len(first))
    second = second + len(workers)
    share(first.copy(), second, len(first), limit, np.array(weights), scratch[0], users, scratch[1], rate)
    return rate


@pytest.mark.parametrize(
    ("connections", "rates"),
    [
        ([(0, 0), (0, 1), (1, 1)], [1 / 2, 1 / 2, 1 / 2]),
        ([(0, 0), (0, 1), (1, 1), (2, 1)], [2 / 3, 1 / 3, 1 / 3, 1 / 3]),
        ([(0, 0), (0, 1)], [1 / 2, 1 / 2]),
    ],
)
def test_shares_of_several_servers(connections: list[tuple[int, int]], rates: list[float]) -> None:
    """Test F: workers A, B, C on servers 1 and 2, every link of rate 1."""
    assert max_min_rates(connections, [1.0, 1.0, 1.0], [1.0, 1.0], [1.0] * len(rates)) == pytest.approx(rates)


def most(
    value: FloatArray, upper: FloatArray, limit: FloatArray, bounds: list[tuple[float, float | None]]
) -> float:
    """Return the largest value of a linear program."""
    found = linprog(-value, A_ub=upper, b_ub=limit, bounds=bounds)
    assert found.fun is not None
    return -float(found.fun)


def lp_max_min(pairs: FloatArray, limits: FloatArray, weights: list[float]) -> FloatArray:
    """Return max-min rates by linear programs: the least rate over its weight is raised, then the next."""
    crosses = np.zeros((len(limits), len(pairs)))
    for at, (first, second) in enumerate(pairs):
        crosses[first, at] = crosses[second, at] = 1
    fixed: dict[int, float] = {}
    while len(fixed) < len(pairs):
        free = [at for at in range(len(pairs)) if at not in fixed]
        # Variables: rates, then the level under which no free rate may stay.
        level = np.zeros((len(free), len(pairs) + 1))
        level[range(len(free)), free] = [-1 / weights[at] for at in free]
        level[:, -1] = 1
        upper = np.vstack([np.hstack([crosses, np.zeros((len(limits), 1))]), level])
        bounds = [(fixed.get(at, 0.0), fixed.get(at)) for at in range(len(pairs))] + [(0, None)]
        limit = np.concatenate([limits, np.zeros(len(free))])
        cost = np.zeros(len(pairs) + 1)
        cost[-1] = -1
        best = most(-cost, upper, limit, bounds)
        for at in free:
            # A rate that cannot be more than the level, all others being at least that, is settled.
            one = np.zeros(len(pairs) + 1)
            one[at] = 1 / weights[at]
            raised = [*bounds[:-1], (best - 1e-9, None)]
            if most(one, upper, limit, raised) <= best + 1e-7:
                fixed[at] = best * weights[at]
    return np.array([fixed[at] for at in range(len(pairs))])


@properties(25)
@given(st.data())
def test_max_min_against_linear_programs(data: st.DataObject) -> None:
    """Progressive filling gives what a sequence of linear programs gives."""
    workers, servers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    every = [(worker, server) for worker in range(workers) for server in range(servers)]
    pairs = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=7, unique=True))
    limit = st.integers(1, 6).map(float)
    of_workers = data.draw(st.lists(limit, min_size=workers, max_size=workers))
    of_servers = data.draw(st.lists(limit, min_size=servers, max_size=servers))
    weight = st.sampled_from([0.5, 1.0, 3.0])
    weights = data.draw(st.lists(weight, min_size=len(pairs), max_size=len(pairs)))
    expected = lp_max_min(
        np.array([(worker, workers + server) for worker, server in pairs]),
        np.array(of_workers + of_servers),
        weights,
    )
    assert max_min_rates(pairs, of_workers, of_servers, weights) == pytest.approx(expected, abs=1e-6)


def profile() -> Profile:
    """Return two layers on one stream, gradients in the order of the backward pass."""
    ops = (
        Op(name="bwd/b", duration_s=2.0, stream="gpu"),
        Op(name="bwd/a", duration_s=1.0, deps=("bwd/b",), stream="gpu"),
        Op(name="fwd/a", duration_s=0.5, deps=("bwd/a",), stream="gpu", waits_for=("a",)),
        Op(name="fwd/b", duration_s=0.5, deps=("fwd/a",), stream="gpu", waits_for=("b",)),
    )
    gradients = (
        Gradient(name="a", size_bytes=2 * MB, producer="bwd/a"),
        Gradient(name="b", size_bytes=4 * MB, producer="bwd/b"),
    )
    cost = AffineAllReduce(latency_s=0, seconds_per_byte=1e-9)
    return Profile(name="two", workers=2, ops=ops, gradients=gradients, allreduce=cost)


def test_a_profile_becomes_steps() -> None:
    """Pull a, pull b, forward, backward, push b while a is computed, push a: by hand at 2 MB/s."""
    steps = steps_from_profile(profile(), bytes_per_s=2 * MB, batch=8)
    run = simulate_steps(steps, 1, steps=1, skip=0, num_recorded=1)
    ends = dict(zip((op.name for op in steps.ops), run.op_end_s[0, 0].tolist(), strict=True))
    assert ends == {
        "down/a": 1.0,
        "down/b": 3.0,
        "compute/fwd/a": 1.5,
        "compute/fwd/b": 3.5,
        "compute/bwd/b": 5.5,
        "compute/bwd/a": 6.5,
        "up/b": 7.5,
        "up/a": 8.5,
    }


def test_drawn_steps_vary_as_the_profile_says() -> None:
    """Every transfer keeps its bytes; compute has the profile's mean."""
    steps = steps_from_profile(profile(), bytes_per_s=1e6, servers=2, count=400, jitter=0.2)
    assert {op.server for op in steps.ops if op.is_transfer} == {0, 1}
    totals = [sum(step.duration_s) for step in steps.steps]
    assert np.mean(totals) == pytest.approx(4.0, rel=0.02)
    assert np.std(totals) > 0.2


def test_bundled_profiles_convert() -> None:
    """The documents of examples/profiles give steps that simulate."""
    steps = steps_from_profile(load_profile("examples/profiles/resnet50.json"), bytes_per_s=1e9)
    assert simulate_steps(steps, 2, steps=3, skip=1).steps_per_s > 0


def test_placing_parameters_anew() -> None:
    """What belongs to one parameter moves together, and its bytes are balanced."""
    base = steps_from_profile(profile(), bytes_per_s=1e6)
    moved = with_servers(base, 2)
    at = {op.name: op.server for op in moved.ops}
    assert (at["down/a"], at["down/b"]) == (0, 1)
    assert (at["up/a"], at["up/b"]) == (0, 1)
    assert moved.bytes_of("downlink") == (2 * MB, 4 * MB)
    assert with_servers(moved, 1) == base
    with pytest.raises(InvalidOptions, match="0 servers"):
        with_servers(pull_compute_push(), 0)
