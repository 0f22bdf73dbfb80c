"""All-reduce documents against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pace.checker.collective_times import allreduce_s
from pace.documents.collective_costs import (
    AffineAllReduce,
    AllReduce,
    HalvingDoublingAllReduce,
    RingAllReduce,
    SampledAllReduce,
    TreeAllReduce,
    TwoLevelAllReduce,
)
from pace.documents.cost_document import NetworkChange
from tests.strategies import allreduces, properties, samples

# 1000 bytes/s, 0.5 s a message, 250 bytes/s to reduce: 800 bytes take 0.8 s to send and 3.2 s to reduce.
NETWORK = {"bandwidth_bytes_per_s": 1000.0, "latency_s": 0.5, "reduce_bytes_per_s": 250.0}


def test_affine_is_the_line_measured_for_any_workers() -> None:
    """0.5 s and 2 s/byte: 20.5 s for 10 bytes."""
    cost = AffineAllReduce(latency_s=0.5, seconds_per_byte=2).cost(8)
    assert cost([0, 1, 10]).tolist() == [0, 2.5, 20.5]


def test_ring_of_four() -> None:
    """Eq. 1: 6 messages of 0.5 s, 6/4 of 0.8 s, 3/4 of 3.2 s: 3 + 1.2 + 2.4 = 6.6."""
    assert float(RingAllReduce(**NETWORK).cost(4)(800)) == pytest.approx(6.6, rel=1e-12)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (2, 2 * 0.5 + 0.8 + 1.6),  # one round each way: x/B out of 2 * 1/2, half of the bytes reduced
        (4, 4 * 0.5 + 1.5 * 0.8 + 0.75 * 3.2),
        (8, 6 * 0.5 + 1.75 * 0.8 + 0.875 * 3.2),
        (3, 2 * 0.5 + 0.8 + 1.6 + 2 * 0.5 + 2 * 0.8 + 3.2),  # as for 2, and the third folded in and out
        (6, 4 * 0.5 + 1.5 * 0.8 + 0.75 * 3.2 + 2 * 0.5 + 2 * 0.8 + 3.2),
    ],
)
def test_halving_and_doubling(workers: int, expected: float) -> None:
    """2 lg n messages for a power of two, and the whole buffer twice more for any other number."""
    cost = HalvingDoublingAllReduce(**NETWORK).cost(workers)
    assert float(cost(800)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("workers", "depth"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_binary_tree(workers: int, depth: int) -> None:
    """Each level costs two messages, the buffer twice and one reduction: 1 + 1.6 + 3.2 = 5.8 s."""
    assert float(TreeAllReduce(**NETWORK).cost(workers)(800)) == pytest.approx(depth * 5.8, rel=1e-12)


def test_two_levels() -> None:
    """Six workers, two in a node: a ring of 2 inside and a ring of 3 nodes outside.

    Inside, 1000 bytes/s and 0.5 s: 2 * 0.5 + 0.8 + 1.6 = 3.4. Outside, 100 bytes/s, 1 s, reducing for
    nothing: 4 * 1 + 4/3 * 8 = 14 2/3.
    """
    outside = {"bandwidth_bytes_per_s": 100.0, "latency_s": 1.0}
    document = TwoLevelAllReduce.model_validate({"intra": NETWORK, "inter": outside, "workers_per_node": 2})
    assert float(document.cost(6)(800)) == pytest.approx(3.4 + 14 + 2 / 3, rel=1e-12)
    assert float(document.cost(2)(800)) == pytest.approx(3.4, rel=1e-12)
    assert float(document.cost(1)(800)) == 0
    alone = document.model_copy(update={"workers_per_node": 1})
    assert float(alone.cost(3)(800)) == pytest.approx(14 + 2 / 3, rel=1e-12)


def test_nodes_must_be_full() -> None:
    """Seven workers do not fill nodes of two."""
    document = TwoLevelAllReduce.model_validate({"intra": NETWORK, "inter": NETWORK, "workers_per_node": 2})
    with pytest.raises(ValueError, match="7 workers cannot be divided into nodes of 2"):
        document.cost(7)


def test_samples_are_joined_by_lines_in_any_order() -> None:
    """Flat below the first, straight between: (10, 1), (20, 2), (40, 6).

    From 20 to 40 bytes a byte takes 0.2 s, but up to 20 bytes it takes 0.1 s: beyond 40 no byte takes more.
    """
    cost = SampledAllReduce(samples=((40, 6), (10, 1), (20, 2))).cost(2)
    assert cost([0, 1, 10, 15, 20, 30, 40, 50]).tolist() == [0, 1, 1, 1.5, 2, 4, 6, 7]


def test_repeated_samples_are_averaged_and_falls_smoothed_by_weight() -> None:
    """3, 3 at 10 bytes and 0 at 20: pooled by weight to 2 each, then up to 4 at 40 bytes and on."""
    cost = SampledAllReduce(samples=((10, 2), (10, 4), (20, 0), (40, 4))).cost(2)
    assert cost([5, 10, 15, 20, 30, 40, 60]).tolist() == pytest.approx([2, 2, 2, 2, 3, 4, 6])


def test_samples_that_end_flat_go_on_with_the_slope_from_the_last_faster_size() -> None:
    """A plateau at the end must not make every larger all-reduce free of volume: 1 s more from 10 to 80."""
    cost = SampledAllReduce(samples=((10, 1), (20, 2), (40, 2), (80, 2))).cost(2)
    assert cost([80, 150]).tolist() == pytest.approx([2, 3])


def test_sizes_that_hardly_differ_give_no_slope() -> None:
    """Two neighbors of a real trace: 768 bytes more took 2 ms: 200 MB would take 9 minutes."""
    cost = SampledAllReduce(samples=((2_371_584, 0.004), (2_372_352, 0.006))).cost(2)
    assert float(cost(200e6)) == pytest.approx(200e6 * 0.004 / 2_371_584, rel=0.01)


def test_below_a_large_smallest_sample_the_latency_is_assumed() -> None:
    """1 MB took 5 ms with 8 workers. A tree's 6 messages of 10 us are left at nothing, halfway at half."""
    cost = SampledAllReduce(samples=((1_000_000, 5e-3), (4_000_000, 14e-3))).cost(8)
    assert cost([0, 1, 500_000]).tolist() == pytest.approx([0, 60e-6, (5e-3 + 60e-6) / 2], rel=1e-3)
    small = SampledAllReduce(samples=((1000, 3e-3), (4_000_000, 14e-3))).cost(8)
    assert float(small(1)) == 3e-3
    fast = SampledAllReduce(samples=((1_000_000, 20e-6),)).cost(8)
    assert float(fast(1)) == pytest.approx(20e-6)


def test_samples_without_a_latency_keep_the_one_that_was_asked_for() -> None:
    """Eight workers with 1 ms a message: 14 ms at no bytes, whatever was assumed before."""
    document = SampledAllReduce(samples=((1_000_000, 5e-3), (4_000_000, 14e-3)))
    changed = document.with_changes(NetworkChange(measured_workers=8, latency_s=1e-3))
    assert float(changed.cost(8)(1)) == pytest.approx(14e-3)
    assert float(changed.cost(8)(1_000_000)) == pytest.approx(14e-3 + 5e-3 - 60e-6)


@given(samples(), st.sampled_from([2, 8]), st.integers(1, 1000), st.integers(1, 1000))
@properties(100)
def test_beyond_the_samples_two_calls_are_never_faster_than_one(
    document: SampledAllReduce, workers: int, more: int, size: int
) -> None:
    """Monotone everywhere; and g(x + y) <= g(x) + g(y) where x is the largest sample or more."""
    curve = document.cost(workers)
    largest = max(size for size, _ in document.samples) + more
    together, first, second = curve([largest + size, largest, size]).tolist()
    assert together <= first + second + 1e-12
    assert first <= together


def test_one_sample_is_extended_in_proportion() -> None:
    """10 bytes in 1 s: 20 bytes in 2 s, but 5 bytes not in less than 1 s."""
    assert SampledAllReduce(samples=((10, 1),)).cost(2)([5, 10, 20]).tolist() == [1, 1, 2]


@given(allreduces(), st.sampled_from([1, 2, 3, 4, 6, 8]), st.lists(st.integers(0, 300), max_size=8))
@properties(100)
def test_the_checker_prices_every_document_alike(document: AllReduce, workers: int, sizes: list[int]) -> None:
    """The curve equals the checker's formulas, which share no code with it."""
    if isinstance(document, TwoLevelAllReduce) and workers % min(2, workers):
        return
    expected = [allreduce_s(document, workers, size) for size in sizes]
    np.testing.assert_allclose(document.cost(workers)(sizes), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("workers", [2, 5, 8, 64])
def test_the_checker_makes_the_same_assumptions(workers: int) -> None:
    """Below a large smallest sample, and beyond the largest."""
    document = SampledAllReduce(
        samples=((70_000, 1e-3), (100_000, 8e-4), (1_000_000, 5e-3), (1_100_000, 9e-3))
    )
    sizes = [1, 1000, 69_999, 80_000, 900_000, 1_050_000, 50_000_000]
    expected = [allreduce_s(document, workers, size) for size in sizes]
    np.testing.assert_allclose(document.cost(workers)(sizes), expected, rtol=1e-9)


@given(allreduces())
@properties(40)
def test_documents_read_back_equal(document: AllReduce) -> None:
    """JSON in between changes nothing."""
    adapter: TypeAdapter[AllReduce] = TypeAdapter(AllReduce)
    assert adapter.validate_json(adapter.dump_json(document)) == document


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "affine", "latency_s": -1, "seconds_per_byte": 0},
        {"kind": "affine", "latency_s": 1, "seconds_per_byte": float("nan")},
        {"kind": "affine", "latency_s": 1, "seconds_per_byte": 0, "bandwidth": 3},
        {"kind": "samples", "samples": []},
        {"kind": "samples", "samples": [[0, 1]]},
        {"kind": "samples", "samples": [[0.5, 1]]},
        {"kind": "samples", "samples": [[10, float("inf")]]},
        {"kind": "ring", "bandwidth_bytes_per_s": 0, "latency_s": 1},
        {"kind": "ring", "bandwidth_bytes_per_s": 1, "latency_s": 1, "reduce_bytes_per_s": 0},
        {"kind": "two-level", "intra": NETWORK, "inter": NETWORK, "workers_per_node": 0},
        {"kind": "butterfly"},
        {"latency_s": 1, "seconds_per_byte": 0},
    ],
)
def test_documents_that_describe_no_network_are_refused(document: dict[str, Any]) -> None:
    """Negative or undefined times, no bandwidth, no samples, unknown kinds and fields."""
    adapter: TypeAdapter[AllReduce] = TypeAdapter(AllReduce)
    with pytest.raises(ValidationError):
        adapter.validate_python(document)


@pytest.mark.parametrize("kind", [RingAllReduce, HalvingDoublingAllReduce, TreeAllReduce])
def test_a_network_changes_in_the_field_that_is_named(kind: type[RingAllReduce]) -> None:
    """Bandwidth and latency are replaced, the rest is kept; workers belong to the profile."""
    document = kind(**NETWORK)
    changed = document.with_changes(NetworkChange(measured_workers=4, workers=16, bandwidth_bytes_per_s=5.0))
    assert changed == kind(**{**NETWORK, "bandwidth_bytes_per_s": 5.0})
    assert document.with_changes(NetworkChange(measured_workers=4, latency_s=0.0)) == kind(
        **{**NETWORK, "latency_s": 0.0}
    )
    assert document.with_changes(NetworkChange(measured_workers=4)) == document


def test_two_levels_change_between_the_nodes() -> None:
    """What-if buys a network, not new nodes."""
    document = TwoLevelAllReduce.model_validate({"intra": NETWORK, "inter": NETWORK, "workers_per_node": 2})
    changed = document.with_changes(
        NetworkChange(measured_workers=4, bandwidth_bytes_per_s=5.0, latency_s=0.25)
    )
    assert changed.intra == document.intra
    assert (changed.inter.bandwidth_bytes_per_s, changed.inter.latency_s) == (5.0, 0.25)


def test_an_affine_cost_is_changed_as_the_ring_that_it_would_be() -> None:
    """At 4 workers 3 s are 6 messages of 0.5 s, and 0.0015 s/byte are 1.5 times 1/1000."""
    document = AffineAllReduce(latency_s=3, seconds_per_byte=0.0015)
    ring = document.with_changes(NetworkChange(measured_workers=4))
    assert ring.latency_s == pytest.approx(0.5)
    assert ring.bandwidth_bytes_per_s == pytest.approx(1000)
    np.testing.assert_allclose(ring.cost(4)([1, 800]), document.cost(4)([1, 800]), rtol=1e-12)
    slower = document.with_changes(
        NetworkChange(measured_workers=4, bandwidth_bytes_per_s=100.0, latency_s=1.0)
    )
    assert float(slower.cost(8)(800)) == pytest.approx(14 + 1.75 * 8)


def test_an_affine_cost_without_volume_has_no_bandwidth_to_keep() -> None:
    """One must be given."""
    document = AffineAllReduce(latency_s=3, seconds_per_byte=0)
    with pytest.raises(ValueError, match="give a bandwidth"):
        document.with_changes(NetworkChange(measured_workers=4, workers=8))
    assert (
        document.with_changes(
            NetworkChange(measured_workers=4, bandwidth_bytes_per_s=10.0)
        ).bandwidth_bytes_per_s
        == 10
    )


def test_samples_scale_as_a_ring_scales() -> None:
    """From 2 to 4 workers: thrice the messages, 1.5 times the volume; (10, 1), (30, 3) has a floor of 1 s."""
    document = SampledAllReduce(samples=((10, 1), (30, 3)))
    changed = document.with_changes(NetworkChange(measured_workers=2, workers=4))
    assert changed.cost(4)([10, 30]).tolist() == pytest.approx([3, 3 + 2 * 1.5])
    # At 2 workers the 30 bytes cross in 2 s: 15 bytes/s. Twice as fast halves what is above the floor.
    faster = document.with_changes(
        NetworkChange(measured_workers=2, bandwidth_bytes_per_s=30.0, latency_s=0.25)
    )
    assert faster.cost(2)([10, 30]).tolist() == pytest.approx([0.5, 0.5 + 1])


@pytest.mark.parametrize(
    "document", [AffineAllReduce(latency_s=1, seconds_per_byte=1), SampledAllReduce(samples=((10, 1),))]
)
def test_one_worker_measures_no_network(document: AffineAllReduce | SampledAllReduce) -> None:
    """What one worker measured says nothing about more."""
    with pytest.raises(ValueError, match="one worker"):
        document.with_changes(NetworkChange(measured_workers=1, workers=4))
