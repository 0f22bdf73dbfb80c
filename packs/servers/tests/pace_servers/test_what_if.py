"""What-ifs of servers: points, all-reduce beside them, and what limits them."""

from typing import Any

import pytest

from pace.errors import InvalidOptions
from pace.models import build
from pace_servers.what_if import ServerGrid, what_if_servers

PROFILE = build("resnet50", device_tflops=8.0, batch=32, workers=4)


def test_more_servers_help_until_the_workers_link_is_full() -> None:
    """One link serves four workers at a quarter of their rate; beyond W = S nothing is gained."""
    grid = ServerGrid(servers=(1, 2, 4, 8), policies=("pace",))
    times = [cell.iteration_s for cell in what_if_servers(PROFILE, grid).cells]
    assert times[0] > times[1] > times[2]
    assert times[3] > 0.99 * times[2]


def test_colocated_servers_cost_what_a_ring_costs() -> None:
    """2 (W - 1)/W bytes cross every link either way, so the two windows are close."""
    grid = ServerGrid(servers=(4,), colocated=True, policies=("pace",), bandwidth_gbps=(4.0,))
    cell = what_if_servers(PROFILE, grid).cells[0]
    assert cell.iteration_s == pytest.approx(cell.allreduce_s, rel=0.2)


def test_every_combination_is_a_point() -> None:
    """In the grid's order, the first policy's speed-up 1; servers without a host are left out."""
    grid = ServerGrid(
        servers=(2, 8),
        workers=(4, 8),
        colocated=True,
        staleness=("sync", "async"),
        policies=("fifo", "pace"),
    )
    done: list[int] = []
    found = what_if_servers(PROFILE, grid, progress=done.append)
    points = [(c.workers, c.servers, c.staleness) for c in found.cells[::2]]
    kept = [(4, 2), (8, 2), (8, 8)]
    assert points == [(*place, word) for place in kept for word in ("sync", "async")]
    assert sum(done) == len(found.cells) == 12
    assert all(cell.speedup == 1 for cell in found.cells[::2])
    assert found.to_document()["grid"]["colocated"] is True


def test_impossible_grids_are_refused() -> None:
    """No host for the servers; a word that is no staleness; no worker; a link without bandwidth."""
    wrong: dict[str, Any]
    for wrong in ({"workers": (0,)}, {"bandwidth_gbps": (0.0,)}):
        with pytest.raises(InvalidOptions, match=f"{next(iter(wrong))}: .*got 0"):
            ServerGrid(**wrong)
    with pytest.raises(InvalidOptions, match="no setting"):
        what_if_servers(PROFILE, ServerGrid(servers=(9,), colocated=True))
    with pytest.raises(InvalidOptions, match="staleness"):
        what_if_servers(PROFILE, ServerGrid(servers=(1,), staleness=("soon",)))
    with pytest.raises(InvalidOptions, match="simulations"):
        what_if_servers(PROFILE, ServerGrid(servers=tuple(range(1, 30_000))))


def test_more_parts_than_fit_into_memory_are_not_simulated() -> None:
    """They are refused before they are made, with what to change."""
    with pytest.raises(InvalidOptions, match="are simulated: choose fewer"):
        what_if_servers(PROFILE.replace(workers=1_000_000), ServerGrid(servers=(1000,)))
