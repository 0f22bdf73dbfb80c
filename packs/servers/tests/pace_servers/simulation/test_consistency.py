"""Simulated workers that wait for one another, a little, or not at all: leads, and how long a window is."""

from typing import Any

import pytest

from pace.simulation import make_policy
from pace_servers.simulation.run import run_server_policy
from tests.pace_servers.planning.clusters import cluster, three_layers


@pytest.mark.parametrize(
    ("how", "ends", "expected"),
    [
        ({"iterations": 1}, [6, 10], 10.0),
        ({"iterations": 3}, [6, 10], 10.0),
        ({"staleness": 1}, [2, 10], 10.0),
        ({"consistency": "async"}, [2, 10], 2 / (1 / 2 + 1 / 10)),
    ],
)
def test_the_slowest_worker_counts(how: dict[str, Any], ends: list[int], expected: float) -> None:
    """A tensor is on worker 0's own host: its first windows end early, and in the long run it waits.

    Both compute for 2 s. Worker 1 pushes from 1 to 5 and pulls until 9. Worker 0 needs no link. It ends at 6,
    or at 2 without waiting; only in async mode it stays faster, and the mean is that of rates.
    """
    profile = three_layers((4, 0, 0), 0, workers=2)
    durations = {"bwd/1": 1.0, "fwd/1": 1.0}
    ops = (op.model_copy(update={"duration_s": durations.get(op.name, 0.0)}) for op in profile.ops)
    profile = profile.replace(ops=tuple(ops))
    policy = make_policy("fifo", "servers", keys="round-robin")
    run = run_server_policy(profile, cluster(2, colocated=True), policy, **how)
    assert run.window_ends_s[0].tolist() == ends
    assert run.iteration_s == pytest.approx(expected)


@pytest.mark.parametrize(("staleness", "most"), [(0, 1), (1, 2), (3, 4)])
def test_no_worker_leads_by_more_than_its_staleness(staleness: int, most: int) -> None:
    """One worker three times as slow: the others end at most K windows more, and one under way."""
    profile = three_layers((1, 1, 1), 1, workers=3)
    run = run_server_policy(
        profile,
        cluster(1, bytes_per_s=1000.0),
        make_policy("fifo", "servers"),
        iterations=30,
        jitter=0.8,
        seed=2,
        staleness=staleness,
    )
    assert run.lead <= most
    free = run_server_policy(
        profile,
        cluster(1, bytes_per_s=1000.0),
        make_policy("fifo", "servers"),
        iterations=30,
        jitter=0.8,
        seed=2,
        consistency="async",
    )
    assert free.lead > most or staleness == 3
    assert free.iteration_s <= run.iteration_s


def test_async_hides_stragglers() -> None:
    """Without a worker's wait for others, windows cost what its own compute and messages cost."""
    profile = three_layers((1, 1, 1), 1, workers=4)
    runs = {
        consistency: run_server_policy(
            profile,
            cluster(4, bytes_per_s=1000.0),
            make_policy("pace", "servers"),
            iterations=20,
            jitter=0.5,
            seed=4,
            consistency=consistency,
        ).iteration_s
        for consistency in ("sync", "async")
    }
    assert runs["async"] < 0.9 * runs["sync"]
