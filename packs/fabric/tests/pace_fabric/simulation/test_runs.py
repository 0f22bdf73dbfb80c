"""Whole runs: against a reference, against what can be computed by hand, and what must hold in each."""

from typing import Any

import numpy as np
import pytest

from pace.errors import InvalidOptions
from pace_fabric.documents.scenario import FabricScenario, RedrawnRates, Straggling
from pace_fabric.simulation import FABRIC_POLICIES, simulate_fabric
from pace_fabric.simulation.push_pull import fair_rates
from pace_fabric.simulation.run import cells_csv, cells_html, fabric_what_if
from tests.pace_fabric.simulation.fluid_reference import async_commits

CHANGING = RedrawnRates(
    bytes_per_s=(3.125e8, 4.125e8, 6.25e8, 1.25e9), shares=(0.1, 0.1, 0.1, 0.7), every_s=2.0
)


def scenario(**given: object) -> FabricScenario:
    """Return a small scenario with stragglers and changing links."""
    document = {
        "machines": 4,
        "workers_per_machine": 2,
        "straggling": Straggling(percent=20, slowdown=3),
        "links": CHANGING,
        "delay_bound": 10,
        "duration_s": 8.0,
        "seed": 3,
    }
    return FabricScenario.model_validate(document | given)


def test_fair_rates_by_hand() -> None:
    """Three transfers into one link of 9, one of them from a link of 1: it gets 1, the others 4 each."""
    capacity = np.array([1.0, 9, 9, 9, 9, 9, 9, 9])
    rates = fair_rates(np.array([0, 1, 2]), np.array([3, 3, 3]), capacity)
    assert rates.tolist() == [1.0, 4.0, 4.0]


def test_the_asynchronous_server_equals_a_fluid_reference() -> None:
    """Every commit at the moment, and of the worker, that SimPy's processes give."""
    small = scenario(machines=3, workers_per_machine=1, duration_s=6.0)
    run = simulate_fabric(small, "async")
    reference = async_commits(small)
    assert len(reference) > 15
    assert [commit.worker for commit in run.commits] == [worker for _, worker in reference]
    assert [commit.at_s for commit in run.commits] == pytest.approx([at for at, _ in reference], abs=1e-5)


def test_without_aggregators_the_server_is_fed_at_its_rate() -> None:
    """Many workers, no sums: as many commits a second as the server's link carries updates."""
    busy = FabricScenario(aggregators=0, delay_bound=500, duration_s=30.0, compute_s=0.01)
    run = simulate_fabric(busy, "mlfabric-a")
    assert run.num_committed / 30.0 == pytest.approx(12.5, rel=0.05)
    assert run.server_bytes == pytest.approx(1e8 * (run.num_committed), rel=0.1)


@pytest.mark.parametrize("policy", FABRIC_POLICIES)
def test_the_same_scenario_gives_the_same_run(policy: str) -> None:
    """Nothing is drawn but from the scenario's seed, and something is committed."""
    first, second = simulate_fabric(scenario(), policy), simulate_fabric(scenario(), policy)
    assert first.commits == second.commits
    assert first.to_document() == second.to_document()
    assert first.num_committed > 20
    assert all(a.at_s <= b.at_s for a, b in zip(first.commits, first.commits[1:], strict=False))


@pytest.mark.parametrize("late", ["drop", "hold", "pace"])
@pytest.mark.parametrize("pull", ["after-commit", "at-once"])
@pytest.mark.parametrize("sum_hosts", [False, True])
def test_no_commit_breaks_the_delay_bound(late: str, pull: str, sum_hosts: bool) -> None:
    """The commit log of every variant: versions rise one by one, no delay reaches the bound."""
    run = simulate_fabric(scenario(late=late, pull=pull, sum_hosts=sum_hosts), "mlfabric-a")
    version = 0
    for commit in run.commits:
        assert commit.version == version
        assert 0 <= commit.delay < 10
        version += commit.num_updates
    assert run.num_committed + run.num_dropped <= run.computed


def test_downweight_commits_late_with_less_weight() -> None:
    """Nothing is dropped; what is late weighs less."""
    run = simulate_fabric(scenario(late="downweight", pull="at-once", delay_bound=4), "mlfabric-a")
    assert run.num_dropped == 0
    late = [commit for commit in run.commits if commit.delay >= 4]
    assert late
    assert all(commit.weight < 1 for commit in late)
    assert all(commit.weight == 1 for commit in run.commits if commit.delay < 4)


def test_pace_drops_less_than_drop() -> None:
    """Computations that would be late are not begun."""
    tight = {"pull": "at-once", "delay_bound": 6}
    dropped = simulate_fabric(scenario(late="drop", **tight), "mlfabric-a").drop_rate
    assert simulate_fabric(scenario(late="pace", **tight), "mlfabric-a").drop_rate < dropped


def test_stale_workers_are_never_too_far_ahead() -> None:
    """SSP: clocks of commits stay within the staleness of the slowest; a synchronous run has no delay."""
    run = simulate_fabric(scenario(staleness=1), "ssp")
    clocks = [0] * 8
    for commit in run.commits:
        clocks[commit.worker] += 1
        assert clocks[commit.worker] - min(clocks) <= 2
    assert set(simulate_fabric(scenario(), "ring").delays) == {0.0}


def test_buffered_and_quorum_servers_commit_together() -> None:
    """FedBuff commits its buffer, a quorum at least so many, at one moment."""
    run = simulate_fabric(scenario(buffer=3), "fedbuff")
    assert {np.sum([c.at_s == at for c in run.commits]) for at in {c.at_s for c in run.commits}} <= {3, 6}
    rounds = simulate_fabric(scenario(quorum=5), "quorum")
    sizes = [sum(c.at_s == at for c in rounds.commits) for at in rounds.rounds_s]
    assert sizes
    assert min(sizes) >= 5


def test_a_chain_by_hand() -> None:
    """A worker computes for 0.1 s; push, copy to the second server and its answer take 80 ms each.

    30 workers in lock step need 2.4 s for each of the three.
    """
    alone = FabricScenario(machines=1, workers_per_machine=1, duration_s=2.0)
    run = simulate_fabric(alone, "chain")
    assert [commit.at_s for commit in run.commits] == pytest.approx([0.26, 0.6, 0.94, 1.28, 1.62, 1.96])
    assert run.server_bytes == run.replica_bytes == 6e8
    together = simulate_fabric(FabricScenario(duration_s=13.0), "chain")
    assert [commit.at_s for commit in together.commits] == pytest.approx([4.9] * 30 + [12.2] * 30)


def test_a_ring_by_hand() -> None:
    """30 workers, 10 Gb/s, 100 MB: 0.1 s of compute, then 155 ms, or 310 ms with two flows on each link."""
    plain = FabricScenario(duration_s=10.0)
    assert simulate_fabric(plain, "ring").rounds_s[0] == pytest.approx(0.1 + 2 * 0.1546667)
    one = plain.model_copy(update={"flows": 1})
    assert simulate_fabric(one, "ring").rounds_s[0] == pytest.approx(0.1 + 0.1546667)
    assert simulate_fabric(one, "tree").rounds_s[0] == pytest.approx(0.1 + 2 * 0.16)


def test_replication_costs_less_with_a_wider_bound() -> None:
    """Bytes to the replica do not rise with the bound; the delay bound is kept all the same."""
    sent = []
    for most in (0, 6, 30):
        run = simulate_fabric(scenario(replicate_updates=most), "mlfabric-a")
        assert run.delays.max() < 10
        sent.append(run.replica_bytes / run.num_committed)
    assert sent[0] >= sent[1] >= sent[2] > 0


def test_a_patient_replica_receives_larger_sums() -> None:
    """Waiting for half of the bound, the replica receives fewer bytes the wider the bound is."""
    sent = []
    for most in (8, 24, 60):
        run = simulate_fabric(
            scenario(replicate_updates=most, replicate_patiently=True, duration_s=20.0), "mlfabric-a"
        )
        sent.append(run.replica_bytes / run.num_committed)
    assert sent[0] > sent[1] > sent[2] > 0


def test_an_unknown_policy_is_refused() -> None:
    """The message lists those that exist."""
    with pytest.raises(InvalidOptions, match="mlfabric-a"):
        simulate_fabric(scenario(), "magic")


def test_what_if_over_bounds_and_aggregators() -> None:
    """One cell a point; the page and the CSV hold them all."""
    cells = fabric_what_if(scenario(), [6, 12], [0, 4])
    assert [(cell.delay_bound, cell.aggregators) for cell in cells] == [(6, 0), (6, 4), (12, 0), (12, 4)]
    assert cells[0].server_bytes_per_commit > cells[1].server_bytes_per_commit
    assert len(cells_csv(cells).splitlines()) == 5
    assert cells_html(scenario(), cells).count("<tr") == 5


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ("mlfabric-a", {"duration_s": 100_000.0}),
        ("mlfabric-s", {"machines": 1, "workers_per_machine": 10_000}),
        ("mlfabric-a", {"duration_s": 1000.0, "tick_s": 1e-4, "compute_s": 1000.0}),
        ("async", {"update_bytes": 1, "compute_s": 1e-6}),
        ("ring", {"duration_s": 100_000.0, "update_bytes": 1, "compute_s": 1e-3}),
    ],
)
def test_a_run_of_an_hour_is_refused(policy: str, fields: dict[str, Any]) -> None:
    """Before it begins, with what to change; a policy that takes less time may run longer."""
    with pytest.raises(InvalidOptions, match=f"{policy} with .* s are allowed. Choose a shorter duration_s"):
        simulate_fabric(FabricScenario(**fields), policy)
    assert simulate_fabric(FabricScenario(duration_s=1000.0), "ring").num_committed > 0
