"""Partition sizes and placement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.solver.flow_shop.lockstep import best_partition_bytes
from pace.solver.flow_shop.two_links import TwoLinks, longest_tail_first
from pace.solver.least_bytes import least_loaded
from tests.solver.flow_shop.theorems import partitioned_bound
from tests.solver.flow_shop.two_links import drawn_links, two_links
from tests.strategies import properties


@pytest.mark.parametrize(
    ("total_mb", "predicted_mb", "published_mb"), [(553, 6.4, 6), (102, 2.7, 3), (367, 5.2, 5)]
)
def test_one_theta_explains_byteschedulers_table(
    total_mb: float, predicted_mb: float, published_mb: float
) -> None:
    """Table 1's push-pull column at 100 Gb/s: 47 us give VGG16's, ResNet50's and Transformer's partition.

    The fit is for 4 machines of 8 GPUs, W = S = 4.
    """
    found = best_partition_bytes(total_mb * 1e6, lost_s=47e-6, bytes_per_s=12.5e9, num_servers=4) / 1e6
    assert found == pytest.approx(predicted_mb, abs=0.1)
    assert found == pytest.approx(published_mb, rel=0.12)


def test_the_best_size_is_where_the_bound_is_least() -> None:
    """delta0 minimizes M theta / delta + 2 S delta / B."""
    total, lost, rate, servers = 1e8, 5e-5, 1.25e9, 4
    best = best_partition_bytes(total, lost_s=lost, bytes_per_s=rate, num_servers=servers)

    def price(size: float) -> float:
        return total * lost / size + 2 * servers * size / rate

    assert price(best) < price(best * 1.01)
    assert price(best) < price(best / 1.01)


@properties(60)
@given(sizes=st.lists(st.integers(0, 50), max_size=30), servers=st.integers(1, 5))
def test_every_prefix_is_balanced(sizes: list[int], servers: int) -> None:
    """After any part, two servers differ by at most the largest part so far."""
    placed = least_loaded(np.array(sizes, dtype=np.int64), servers)
    load = [0] * servers
    for number, size in enumerate(sizes):
        load[int(placed[number])] += size
        assert max(load) - min(load) <= max(sizes[: number + 1])


def test_ties_go_to_the_first_server() -> None:
    """The same map on every rank, whatever computes it."""
    assert least_loaded(np.array([4, 4, 2, 1, 1]), 2).tolist() == [0, 1, 0, 1, 1]


@properties(30)
@given(instance=drawn_links(8, ratio=st.just(1.0)), lost=st.sampled_from([0.0, 0.125, 1.0]))
def test_partitions_keep_their_bound(instance: TwoLinks, lost: float) -> None:
    """Parts of 1/2 s that each lose `lost` seconds, by longest tail: never above the ceil bound."""
    parts = []
    for job in range(len(instance)):
        left = float(instance.push[job])
        while left > 0:
            size = min(left, 0.5)
            parts.append((instance.ready[job], size + lost, size + lost, instance.tail[job]))
            left -= size
    real = longest_tail_first(two_links(parts)).objective
    sent = instance.push > 0
    fluid = longest_tail_first(
        two_links([(r, 0.0, 0.0, q) for r, q in zip(instance.ready[sent], instance.tail[sent], strict=True)])
    ).objective
    from pace.solver.one_machine import Instance, solve

    chosen = Instance(ready=instance.ready[sent], processing=instance.push[sent], tail=instance.tail[sent])
    fluid = max(fluid, solve(chosen).objective)
    # Each part's own pull loses `lost` too: that is the theta after the sum, and one more for the part ahead.
    bound = partitioned_bound(fluid, instance.push[sent], 0.5, lost_s=lost, bytes_per_s=1.0)
    assert real <= bound + lost + 1e-9
