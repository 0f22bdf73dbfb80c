"""Simulated pushes and pulls: exact tables, published demands, rules, placement."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pace import Gradient, Op, Profile
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.options import Options
from pace.errors import InvalidOptions
from pace.models import build
from pace.simulation import knobs_of, make_policy
from pace.simulation.registry import policies_for
from pace_servers.planning.optimize import optimize_servers
from pace_servers.simulation.policies import byteps_keys, djb2_server, mxnet_parts
from pace_servers.simulation.run import run_server_policy
from pace_servers.simulation.traffic import gates
from tests.pace_servers.planning.clusters import cluster, clusters, three_layers
from tests.strategies import affine, layered, profiles, properties

STOP_AND_WAIT: dict[str, Any] = {"credit_bytes": 0, "admission": "paper"}


def window(profile: Profile, name: str, servers: Any, **knobs: Any) -> float:
    """Return the window under a policy."""
    return run_server_policy(profile, servers, make_policy(name, "servers", **knobs)).iteration_s


@pytest.mark.parametrize(
    ("sizes", "forward_s", "expected"),
    [((1, 2, 3), 1, (13, 12, 11, 9, 9)), ((1, 4, 8), 4, (34, 30, 27, 19, 19))],
)
def test_three_layers_by_hand(
    sizes: tuple[int, int, int], forward_s: float, expected: tuple[float, ...]
) -> None:
    """Whole tensors and parts of one second, first in first out and by layer; ours with parts as it likes.

    The first row is ByteScheduler's Fig. 2: 13 over 9 is a gain of 44.4 %.
    """
    profile = three_layers(sizes, forward_s)
    found = (
        window(profile, "fifo", cluster()),
        window(profile, "bytescheduler", cluster(), partition_bytes=1000, **STOP_AND_WAIT),
        window(profile, "fifo", cluster(), keys="parts", partition_bytes=1),
        window(profile, "bytescheduler", cluster(), partition_bytes=1, **STOP_AND_WAIT),
        window(profile, "pace", cluster(), partition_bytes=1),
    )
    assert found == expected


def test_windows_follow_one_another() -> None:
    """Without jitter each of ten windows takes what the first takes, and all workers end together."""
    profile = three_layers((1, 2, 3), 1, workers=3)
    run = run_server_policy(profile, cluster(3), make_policy("fifo", "servers"), iterations=10)
    assert run.iterations_s == pytest.approx([run.iterations_s[0]] * 10)
    assert (run.window_ends_s.max(axis=1) == run.window_ends_s.min(axis=1)).all()


@given(data=st.data(), profile=profiles())
@properties(30)
def test_no_policy_beats_the_bounds(data: st.DataObject, profile: Profile) -> None:
    """Any profile and servers: no simulated window is shorter than the bound against every partition."""
    profile = profile.replace(update=data.draw(st.sampled_from(["per-gradient", "global-norm"])))
    chosen = data.draw(clusters(profile, uneven=False))
    bound = optimize_servers(profile, Options(cluster=chosen)).predicted.lower_bound_s
    name = data.draw(st.sampled_from(policies_for("servers")))
    run = run_server_policy(profile, chosen, make_policy(name, "servers"))
    assert run.iteration_s >= bound * (1 - 1e-9)
    assert (run.push_starts_s <= run.push_ends_s).all()
    assert (run.pull_starts_s >= run.push_ends_s.max(axis=1, keepdims=True) - 1e-12).all()
    assert run.traffic.sizes.sum() == sum(gradient.size_bytes for gradient in profile.gradients)


@given(data=st.data(), profile=profiles())
@properties(40)
def test_a_plan_takes_what_it_predicts(data: st.DataObject, profile: Profile) -> None:
    """Equal workers without jitter: to rounding, the schedule's own window.

    On more than two workers' hosts, parts arrive at some workers sooner than at others, and take more time
    or less than planned.
    """
    profile = profile.replace(update=data.draw(st.sampled_from(["per-gradient", "global-norm"])))
    chosen = data.draw(clusters(profile, uneven=False))
    if chosen.exchange.colocated:
        profile = profile.replace(workers=2)
        assume(chosen.exchange.servers <= profile.workers)
    size = data.draw(st.sampled_from([4, 16, 1000]))
    predicted = optimize_servers(profile, Options(cluster=chosen, partition_bytes=size)).predicted
    run = run_server_policy(profile, chosen, make_policy("pace", "servers", partition_bytes=size))
    assert run.iteration_s == pytest.approx(predicted.iteration_s, rel=1e-9)


@pytest.fixture(scope="module")
def vgg() -> Profile:
    """VGG16 on four workers, computing for 140 ms."""
    profile = build("vgg16", device_tflops=8.0, batch=32, workers=4)
    factor = 0.14 / profile.timing.compute_s
    return profile.replace(
        ops=tuple(op.model_copy(update={"duration_s": op.duration_s * factor}) for op in profile.ops)
    )


FOUR = cluster(4, bytes_per_s=1.25e9, partition_s=50e-6, round_trip_s=100e-6)


def test_what_published_systems_gain_on_vgg16(vgg: Profile) -> None:
    """10 Gb/s, W = S = 4: 70-85 % over MXNet's FIFO, 25-55 % over P3, and ours ahead of all."""
    fifo, p3, bytescheduler, ours = (
        window(vgg, name, FOUR) for name in ("fifo", "p3", "bytescheduler", "pace")
    )
    assert 0.70 <= fifo / bytescheduler - 1 <= 0.85
    assert 0.25 <= p3 / bytescheduler - 1 <= 0.55
    assert ours <= bytescheduler * (1 + 1e-3)
    assert window(vgg, "fifo", FOUR, keys="round-robin") > 2 * fifo


def test_one_credit_for_all_servers_is_a_convoy(vgg: Profile) -> None:
    """In lock step all workers address one server: stop-and-wait per worker is nearly S times slower."""
    knobs = {"partition_bytes": 1_000_000, **STOP_AND_WAIT}
    alone = window(vgg, "bytescheduler", FOUR, credit_of="worker", **knobs)
    each = window(vgg, "bytescheduler", FOUR, credit_of="connection", **knobs)
    assert alone > 3 * each


def test_admission_with_less_credit_than_a_part() -> None:
    """The paper's rule waits for credit that covers a part; the code's goes while any is left.

    Parts of 4 bytes, credit 6: the paper has one under way, the code two.
    """
    profile = layered(
        [4, 4, 4, 4],
        allreduce=affine(0, 1),
        backward_s=[1, 1, 1, 1],
        forward_s=[1, 1, 1, 1],
        dtypes=["int8"] * 4,
        workers=1,
    )
    knobs = {"partition_bytes": 4, "credit_bytes": 6}
    by_rule = {
        rule: run_server_policy(
            profile, cluster(), make_policy("bytescheduler", "servers", admission=rule, **knobs)
        )
        for rule in ("paper", "code")
    }
    orders = {
        rule: np.argsort(run.push_starts_s[0, 0], kind="stable").tolist() for rule, run in by_rule.items()
    }
    # Parts are numbered by readiness: the last is the most urgent. ByteScheduler's own example.
    assert orders == {"paper": [0, 3, 2, 1], "code": [0, 1, 3, 2]}


def test_stop_and_wait_is_a_credit_of_one_part(vgg: Profile) -> None:
    """No credit at all and exactly one part's give the same window."""
    knobs = {"partition_bytes": 1_000_000, "admission": "paper", "credit_of": "connection"}
    assert window(vgg, "bytescheduler", FOUR, credit_bytes=0, **knobs) == window(
        vgg, "bytescheduler", FOUR, credit_bytes=1_000_000, **knobs
    )


def test_the_first_worker_may_decide_for_all(vgg: Profile) -> None:
    """The released code: with jitter, nobody pushes a part before worker 0 has handed it over."""
    policy = make_policy(
        "bytescheduler", "servers", lead="first", partition_bytes=8_000_000, credit_bytes=0, admission="paper"
    )
    run = run_server_policy(vgg, FOUR, policy, jitter=0.3, seed=3, iterations=2)
    first = run.push_starts_s[:, :1]
    assert (run.push_starts_s >= first).all()
    each = make_policy(
        "bytescheduler", "servers", partition_bytes=8_000_000, credit_bytes=0, admission="paper"
    )
    free = run_server_policy(vgg, FOUR, each, jitter=0.3, seed=3, iterations=2)
    assert not (free.push_starts_s >= free.push_starts_s[:, :1]).all()


def test_overtaking_never_idles_and_equals_static_when_nothing_is_late() -> None:
    """One server, nothing late: both orders are one. A free connection always takes what waits."""
    profile = three_layers((2, 4, 6), 1, workers=4)
    servers = cluster(1, partition_s=0.05)
    static, overtake = (
        make_policy("pace", "servers", order=order, partition_bytes=1) for order in ("static", "overtake")
    )
    steady = [run_server_policy(profile, servers, policy).iteration_s for policy in (static, overtake)]
    assert steady[0] == pytest.approx(steady[1])
    run = run_server_policy(profile, cluster(3), overtake)
    ready = np.array([profile.timing.ready_s[group].max() for group in map(list, run.traffic.groups)])
    for server in range(3):
        on_it = np.flatnonzero(run.traffic.server == server)
        order = on_it[np.argsort(run.push_starts_s[0, 0, on_it], kind="stable")]
        free = 0.0
        for at, part in enumerate(order):
            waiting = ready[run.traffic.part_groups[order[at:]]].min()
            assert run.push_starts_s[0, 0, part] == pytest.approx(max(free, waiting))
            free = run.push_ends_s[0, 0, part]


def test_a_shared_plan_beats_every_worker_for_itself_under_jitter(vgg: Profile) -> None:
    """20 % jitter, parts of 1 MB: workers that follow one plan push the same parts, and sums complete."""
    found = {
        order: run_server_policy(
            vgg,
            FOUR,
            make_policy("pace", "servers", order=order, partition_bytes=1_000_000),
            jitter=0.2,
            iterations=20,
            seed=1,
        ).iteration_s
        for order in ("overtake", "by-layer")
    }
    assert found["overtake"] < found["by-layer"]


def seq_n(count: int, workers: int) -> Profile:
    """Return a chain of `count` forward ops, each waiting for a transfer of its own."""
    return layered(
        [4] * count,
        allreduce=affine(0, 1),
        backward_s=[0.01] * count,
        forward_s=[1] * count,
        dtypes=["int8"] * count,
        workers=workers,
    )


def par_n(count: int) -> Profile:
    """Return `count` forward ops on one stream that wait for nothing but a transfer of their own."""
    ops = [Op(name="bwd/0", duration_s=0.01)]
    ops += [Op(name=f"fwd/{at}", duration_s=1.0, waits_for=(f"g{at}",)) for at in range(count)]
    return Profile(
        name="par",
        workers=1,
        ops=tuple(ops),
        gradients=tuple(
            Gradient(name=f"g{at}", size_bytes=4, dtype="int8", producer="bwd/0") for at in range(count)
        ),
        allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1.0),
    )


def test_seq_has_one_best_order_and_par_none() -> None:
    """TicTac's toy models: an order helps the chain, and cannot help ops that wait for nothing else."""
    chain, servers = seq_n(6, 2), cluster(1, bytes_per_s=8.0)
    random = [
        run_server_policy(chain, servers, make_policy("tao", "servers"), seed=seed).iteration_s
        for seed in range(3)
    ]
    assert len(set(random)) == 1
    unordered = run_server_policy(
        chain, servers, make_policy("fifo", "servers", keys="round-robin"), iterations=1
    )
    assert unordered.iteration_s > random[0] - 1e-9
    parallel = par_n(5)
    found = {window(parallel, name, cluster()) for name in ("tio", "tao")}
    assert len(found) == 1


def test_gates_open_at_the_number_of_smaller_priorities() -> None:
    """Equal priorities share a gate; what has none passes and is not counted; each server counts its own."""
    priority = np.array([2.0, 1.0, 1.0, np.nan, 5.0, 0.0])
    assert gates(priority, np.zeros(6, dtype=np.int64)).tolist() == [3, 1, 1, -1, 4, 0]
    assert gates(priority, np.array([0, 0, 1, 1, 1, 1])).tolist() == [1, 0, 1, -1, 2, 0]


@pytest.mark.parametrize("policy", ["tio", "tao"])
def test_a_transfer_that_no_op_requests_holds_up_none(policy: str) -> None:
    """A tensor that nobody waits for is pulled too, and the others keep one order around it."""
    chain = seq_n(6, 2)
    idle = chain.gradients[2].name
    ops = [
        op.model_copy(update={"waits_for": tuple(name for name in op.waits_for if name != idle)})
        for op in chain.ops
    ]
    pruned = chain.model_copy(update={"ops": tuple(ops)})
    assert any(idle in op.waits_for for op in chain.ops)
    servers, made = cluster(1, bytes_per_s=8.0), make_policy(policy, "servers")
    run = run_server_policy(pruned, servers, made, iterations=3, jitter=0.2)
    assert np.isfinite(run.pull_starts_s).all()
    assert np.isfinite(run.iteration_s)
    orders = {
        tuple(place for place in np.argsort(row).tolist() if place != 2)
        for row in run.pull_starts_s.reshape(-1, 6)
    }
    assert len(orders) == 1


def test_servers_keep_the_order() -> None:
    """Under TAO every worker pulls in one order from a server; without an order they differ."""
    chain, servers = seq_n(8, 4), cluster(1, bytes_per_s=8.0)
    ordered = run_server_policy(chain, servers, make_policy("tao", "servers"), iterations=3, jitter=0.2)
    orders = {tuple(np.argsort(row).tolist()) for row in ordered.pull_starts_s.reshape(-1, 8)}
    assert len(orders) == 1
    from pace_servers.simulation.policies import TicTacOnServers

    free = run_server_policy(chain, servers, TicTacOnServers(order="random"), iterations=3, jitter=0.2)
    assert len({tuple(np.argsort(row).tolist()) for row in free.pull_starts_s.reshape(-1, 8)}) > 6


def test_keys_of_mxnet_and_byteps() -> None:
    """Small arrays by key, large ones split evenly over all servers; BytePS's hash by hand."""
    sizes, elements = np.array([400, 8_000_000]), np.array([4, 4])
    tensors, parts, server = mxnet_parts(sizes, elements, 3)
    assert tensors.tolist() == [0, 1, 1, 1]
    assert parts.sum() == sizes.sum()
    assert parts[1:].max() - parts[1:].min() <= 4
    assert server.tolist() == [0, 0, 1, 2]
    # djb2 of "0": 5381 * 33 + 48.
    assert djb2_server(0, 1000) == (5381 * 33 + 48) % 1000
    assert byteps_keys(np.array([0, 0, 1]), 7).tolist() == [djb2_server(key, 7) for key in (0, 1, 1 << 16)]


@pytest.mark.parametrize("name", policies_for("servers"))
def test_wrong_knobs_are_refused(name: str) -> None:
    """Unknown policies and knobs, and values that cannot be: the message lists what there is."""
    with pytest.raises(InvalidOptions, match="has no knob"):
        make_policy(name, "servers", colour=1)
    knob = knobs_of(name, "servers")[0]
    with pytest.raises(InvalidOptions, match=knob):
        make_policy(name, "servers", **{knob: -1})
    with pytest.raises(InvalidOptions, match="fifo"):
        make_policy("nobody", "servers")


def test_impossible_runs_are_refused(vgg: Profile) -> None:
    """No windows, negative jitter, staleness without sync, a barrier at every step without it."""
    fifo = make_policy("fifo", "servers")
    for given_ in ({"iterations": 0}, {"jitter": -1.0}, {"staleness": -1}):
        with pytest.raises(InvalidOptions):
            run_server_policy(vgg, FOUR, fifo, **given_)
    with pytest.raises(InvalidOptions, match="staleness"):
        run_server_policy(vgg, FOUR, fifo, consistency="async", staleness=1)
    with pytest.raises(InvalidOptions, match="stale"):
        run_server_policy(vgg, FOUR, make_policy("tao", "servers"), consistency="async")
