"""What the benchmarks re-enact, where the numbers can be checked by hand or must keep their direction."""

import pytest

from benchmarks.studies.papers.bytescheduler import best_partition, example_s, three_layers
from benchmarks.studies.papers.pace_figures import cumulative_sizes, preemption_s, profile_of, use_of_network
from pace import optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.models import build, with_ratio
from pace.simulation import make_policy


def test_byteschedulers_example_gains_44_percent() -> None:
    """FIFO: all-reduces of 8, 4 and 1 s from 1 s on end at 9, 13 and 14 s, then 12 s forward: 26 s.

    By layer in parts of a second: layer 0 goes 3-4 s, layer 1 from 2 to 3 and 4 to 7 s, layer 2 ends at 14 s;
    forward runs 4-8, 8-12 and 14-18 s. 26 / 18 = 1.444. No schedule is faster.
    """
    fifo, parts = example_s()
    assert (fifo, parts) == (26.0, 18.0)
    assert round((fifo / parts - 1) * 100, 1) == 44.4
    assert optimize(three_layers()).predicted.lower_bound_s == pytest.approx(18.0)


def test_the_network_is_idle_where_first_in_first_out_waits() -> None:
    """Of a window of 11 s, 7 s of all-reduces run from 1 to 8 s: the first tenth has 0.1 s of them."""
    use = use_of_network(
        three_layers((1, 2, 4), backward_s=1, forward_s=1), make_policy("fifo", barrier=False)
    )
    assert use[0] == pytest.approx(0.1 / 1.1)
    assert use[1:7] == pytest.approx(1.0)
    assert use[7] == pytest.approx(0.3 / 1.1)
    assert use[8:].tolist() == [0.0, 0.0]


def test_small_tensors_of_vgg16_are_its_biases() -> None:
    """13 of convolutions and the last of 1,000 numbers have at most 4 KiB; so have 14 of 32 tensors."""
    of_tensors, of_bytes = cumulative_sizes(profile_of("vgg16", 8.0))
    assert of_tensors[0] == 14 / 32
    biases = 4 * (2 * 64 + 2 * 128 + 3 * 256 + 6 * 512 + 1000)
    assert of_bytes[0] == pytest.approx(biases / (4 * 138_357_544))


def test_preemption_alone_reaches_the_bound() -> None:
    """Layer 2's 4 s start at 1 s. Whole, layer 0 ends at 8 s in turn and at 6 s first; cut, at 4 s."""
    assert preemption_s() == {
        "first in, first out": 11.0,
        "priority": 10.0,
        "preemption": 9.0,
        "bound": pytest.approx(9.0),
    }


def test_all_reduce_wants_larger_partitions_than_stop_and_wait() -> None:
    """62 messages an all-reduce against 2: Table 1's trend, on VGG16."""
    ring = AffineAllReduce(latency_s=62 * 3e-5, seconds_per_byte=1e-9)
    base = with_ratio(build("vgg16", device_tflops=8.0, batch=64, workers=32, allreduce=ring), 1.0)
    point_to_point = AffineAllReduce(latency_s=2 * 3e-5, seconds_per_byte=base.cost.slope_beyond)
    assert best_partition(base)[0] >= 4 * best_partition(base.replace(allreduce=point_to_point))[0]
