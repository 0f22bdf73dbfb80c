"""What-if: every point is the profile that it stands for, and the answers follow from the cells."""

import json
from itertools import product
from typing import Any

import pytest

from pace import Gradient, InvalidOptions, Op, Profile
from pace.documents.collective_costs import (
    AffineAllReduce,
    RingAllReduce,
    SampledAllReduce,
    TwoLevelAllReduce,
)
from pace.models import build
from pace.simulation import make_policy, run_policy
from pace.whatif import Grid, Scenario, bandwidth_for, estimate_s, profile_at, what_if
from pace.whatif.scenario import GBPS, TwoLevel
from pace.whatif.target import answer_all

VGG = build("vgg16", device_tflops=8.0, batch=64, workers=8)
# One gradient of 1 Gbit between a backward and a forward op of 1 s each: worked by hand.
PLAIN = Profile(
    name="plain",
    workers=2,
    ops=(
        Op(name="bwd/a", duration_s=1.0, duration_std_s=0.5, stream="compute"),
        Op(name="fwd/a", duration_s=1.0, stream="compute", waits_for=("a",)),
    ),
    gradients=(Gradient(name="a", size_bytes=125_000_000, producer="bwd/a"),),
    allreduce=RingAllReduce(bandwidth_bytes_per_s=125e6, latency_s=0.0),
    metadata={"batch": 10, "batch_unit": "images of 224 x 224"},
)


def test_a_worked_grid() -> None:
    """Two workers send the whole buffer once: 1 Gbit in 1 s at 1 Gb/s, in 0.5 s at 2, beside 2 s of compute.

    Throughput 20 images in 3 s and in 2.5 s; doubling the bandwidth gains 20 % for 1 Gb/s more.
    """
    grid = Grid(bandwidth_gbps=(1.0, 2.0), policies=("fifo",))
    first, second = what_if(PLAIN, grid).cells
    assert (first.iteration_s, second.iteration_s) == (3.0, 2.5)
    assert first.throughput == pytest.approx(20 / 3)
    assert second.scaling_efficiency == pytest.approx(2 / 2.5)
    assert first.gain_per_gbps == pytest.approx(0.2)
    assert second.gain_per_gbps is None
    assert what_if(PLAIN, grid).unit == "images"


@pytest.mark.parametrize(
    ("scenario", "window"),
    [
        (Scenario(), 3.0),
        (Scenario(bandwidth_gbps=4.0), 2.25),
        (Scenario(workers=4), 3.5),  # a ring of four sends 1.5 times the buffer
        (Scenario(workers=1), 2.0),
        (Scenario(latency_s=0.25), 3.5),  # two messages
        (Scenario(compute_speedup=2.0), 2.0),
        (Scenario(batch=20.0), 5.0),
        (Scenario(compression=2.0), 2.5),
        (Scenario(algorithm="tree"), 4.0),  # one level up and down
        (Scenario(algorithm="halving-doubling", workers=4), 3.5),
        (Scenario(algorithm="ring", workers=4, latency_s=0.125), 4.25),
        (Scenario(batch=5.0, compute_speedup=2.0, compression=4.0, bandwidth_gbps=0.5), 1.0),
    ],
)
def test_a_scenario_worked_by_hand(scenario: Scenario, window: float) -> None:
    """Each axis alone and some together."""
    assert run_policy(profile_at(PLAIN, scenario), make_policy("fifo")).iteration_s == pytest.approx(window)


def test_compression_leaves_whole_elements() -> None:
    """125,000,000 bytes at 3 times: 41,666,667 rounded up to a multiple of 4."""
    assert profile_at(PLAIN, Scenario(compression=3.0)).gradients[0].size_bytes == 41_666_668


def test_jitter_scales_with_its_op() -> None:
    """An op that runs twice as fast varies half as much."""
    op = profile_at(PLAIN, Scenario(compute_speedup=2.0)).ops[0]
    assert (op.duration_s, op.duration_std_s) == (0.5, 0.25)


def test_a_line_is_read_as_a_ring() -> None:
    """2(n-1) messages and 2(n-1)/n of the bytes, taken back to one link and put together for others."""
    line = PLAIN.replace(workers=4, allreduce=AffineAllReduce(latency_s=0.6, seconds_per_byte=1.5e-9))
    assert float(profile_at(line, Scenario(workers=4)).cost(1000)) == pytest.approx(0.6 + 1.5e-6)
    changed = profile_at(line, Scenario(workers=8, bandwidth_gbps=16.0)).cost(1e9)
    assert float(changed) == pytest.approx(14 * 0.1 + 1.75 * 1e9 / 2e9)
    tree = profile_at(line, Scenario(algorithm="tree")).cost(1e9)
    assert float(tree) == pytest.approx(4 * 0.1 + 4 * 1e9 / 1e9)


def test_samples_become_another_algorithm() -> None:
    """The smallest is latency, the largest gives the bandwidth."""
    samples = SampledAllReduce(samples=((1.0, 0.5), (1e9, 2.5)))
    profile = PLAIN.replace(workers=2, allreduce=samples)
    ring = profile_at(profile, Scenario(algorithm="ring")).cost(1e9)
    assert float(ring) == pytest.approx(2.5)


def test_two_levels_need_the_inside_of_a_node() -> None:
    """Refused without; with it the profile's own link is the one between nodes."""
    with pytest.raises(InvalidOptions, match="two-level all-reduce needs workers_per_node and intra_gbps"):
        profile_at(PLAIN, Scenario(algorithm="two-level"))
    made = profile_at(
        PLAIN, Scenario(algorithm="two-level", workers=8), TwoLevel(workers_per_node=4, intra_gbps=80.0)
    )
    assert isinstance(made.allreduce, TwoLevelAllReduce)
    assert made.allreduce.inter.bandwidth_bytes_per_s == 125e6
    assert made.allreduce.intra.bandwidth_bytes_per_s == 80 * GBPS
    with pytest.raises(InvalidOptions, match="6 workers cannot be divided into nodes of 4"):
        what_if(
            PLAIN,
            Grid(
                algorithm=("two-level",),
                workers=(8, 6),
                workers_per_node=4,
                intra_gbps=80.0,
            ),
        )


def test_a_point_is_what_simulating_its_profile_gives() -> None:
    """Short cuts change nothing: every cell equals a simulation of a profile made anew."""
    policies = ("ddp", "bytescheduler", "pace")
    grid = Grid(
        bandwidth_gbps=(10.0, 2.0),
        workers=(2, 12),
        compute_speedup=(1.0, 3.0),
        batch=(32.0,),
        compression=(1.0, 8.0),
        policies=policies,
    )
    result = what_if(VGG, grid)
    places = product((1.0, 3.0), (32.0,), (1.0, 8.0), (2, 12), (10.0, 2.0), policies)
    assert len(result.cells) == grid.num_cells == 48
    for cell, (speedup, batch, compression, workers, bandwidth, policy) in zip(
        result.cells, places, strict=True
    ):
        assert (cell.compute_speedup, cell.batch, cell.compression) == (speedup, batch, compression)
        assert (cell.workers, cell.bandwidth_gbps, cell.policy) == (workers, bandwidth, policy)
        anew = VGG.replace(
            workers=workers,
            ops=tuple(
                op.model_copy(update={"duration_s": op.duration_s * (32.0 / 64 / speedup)}) for op in VGG.ops
            ),
            gradients=tuple(
                g.model_copy(update={"size_bytes": -(-g.size_bytes // int(compression) // 4) * 4})
                for g in VGG.gradients
            ),
            allreduce=VGG.allreduce.model_copy(update={"bandwidth_bytes_per_s": bandwidth * GBPS}),
        )
        expected = run_policy(anew, make_policy(policy)).iteration_s
        assert cell.iteration_s == pytest.approx(expected, rel=1e-9)
        assert cell.compute_s == pytest.approx(anew.timing.compute_s, rel=1e-9)


def test_a_points_profile_is_a_valid_one() -> None:
    """Its hash, fingerprint and cost are its own, and the profile that it was made from keeps its own."""
    before = (VGG.sha256, VGG.fingerprint, float(VGG.cost(1e6)))
    point = profile_at(VGG, Scenario(workers=4, bandwidth_gbps=3.0))
    anew = Profile.model_validate_json(point.model_dump_json())
    assert (point.sha256, point.fingerprint) == (anew.sha256, anew.fingerprint)
    assert float(point.cost(1e6)) == float(anew.cost(1e6)) != before[2]
    assert (VGG.sha256, VGG.fingerprint, float(VGG.cost(1e6))) == before


def test_processes_do_not_change_the_results() -> None:
    """Two processes give the cells that one gives, in the same order, and report each of them."""
    grid = Grid(
        bandwidth_gbps=tuple(float(b) for b in range(1, 70)), workers=(2, 4), policies=("fifo", "ddp")
    )
    done: list[int] = []
    together = what_if(PLAIN, grid, processes=2, progress=done.append)
    assert together.cells == what_if(PLAIN, grid, processes=1).cells
    assert sum(done) == grid.num_cells == len(together.cells)


def test_speedups_are_against_the_baseline() -> None:
    """Its own is 1 everywhere; the others' is its iteration time over theirs."""
    grid = Grid(bandwidth_gbps=(5.0, 10.0), policies=("fifo", "pace", "ddp"), baseline="fifo")
    for fifo, optimal, ddp in what_if(VGG, grid).points():
        assert fifo.speedup == 1.0
        assert optimal.speedup == fifo.iteration_s / optimal.iteration_s > 1.0
        assert ddp.speedup == fifo.iteration_s / ddp.iteration_s
    assert Grid(policies=("fifo", "ddp")).baseline_policy == "ddp"
    assert Grid(policies=("tio", "fifo")).baseline_policy == "tio"


def test_gains_follow_bandwidth_and_not_its_order() -> None:
    """A grid given from fast to slow says the same of each bandwidth."""
    rising = what_if(VGG, Grid(bandwidth_gbps=(1.0, 4.0, 9.0), workers=(2, 8), policies=("fifo", "pace")))
    falling = what_if(VGG, Grid(bandwidth_gbps=(9.0, 1.0, 4.0), workers=(2, 8), policies=("fifo", "pace")))
    gains = [
        {(c.bandwidth_gbps, c.workers, c.policy): c.gain_per_gbps for c in made.cells}
        for made in (rising, falling)
    ]
    assert gains[0] == gains[1]
    assert sum(gain is None for gain in gains[0].values()) == 4


def test_the_bandwidth_for_a_target_is_a_root() -> None:
    """2 s of compute and 1 Gbit: 80 % needs a window of 2.5 s, which 2 Gb/s gives."""
    assert bandwidth_for(PLAIN, "fifo", 0.8) == pytest.approx(2.0, rel=2e-4)
    found = bandwidth_for(VGG, "pace", 0.9)
    assert found is not None

    def efficiency(gbps: float) -> float:
        point = profile_at(VGG, Scenario(bandwidth_gbps=gbps))
        return point.timing.compute_s / run_policy(point, make_policy("pace")).iteration_s

    assert efficiency(found) >= 0.9 > efficiency(found * 0.999)


def test_a_target_out_of_reach_has_no_bandwidth() -> None:
    """A latency of 1 s in 3 s of window caps efficiency at two thirds; one worker reaches it anywhere."""
    slow = Scenario(latency_s=0.5)
    assert bandwidth_for(PLAIN, "fifo", 0.7, slow) is None
    assert bandwidth_for(PLAIN, "fifo", 0.6, slow) is not None
    alone = bandwidth_for(PLAIN, "fifo", 1.0, Scenario(workers=1))
    assert alone is not None
    assert alone <= 0.001
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidOptions, match="target_efficiency is"):
            bandwidth_for(PLAIN, "fifo", wrong)


def test_targets_are_answered_for_every_other_axis() -> None:
    """One answer for each number of workers and policy, whatever the grid's bandwidths."""
    grid = Grid(bandwidth_gbps=(1.0, 2.0), workers=(2, 4), policies=("fifo", "pace"))
    answers = answer_all(PLAIN, grid, 0.8)
    assert [(a.workers, a.policy) for a in answers] == list(product((2, 4), ("fifo", "pace")))
    assert answers[0].bandwidth_gbps == pytest.approx(2.0, rel=2e-4)
    assert answers[2].bandwidth_gbps == pytest.approx(3.0, rel=2e-4)  # 1.5 times the bytes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"bandwidth_gbps": (0.0,)},
            "bandwidth_gbps: expected a number from 1e-9 to 1e9 (got 0.0)",
        ),
        (
            {"bandwidth_gbps": (1e30,)},
            "bandwidth_gbps: expected a number from 1e-9 to 1e9 (got 1e+30)",
        ),
        ({"bandwidth_gbps": (float("inf"),)}, "(got inf)"),
        ({"bandwidth_gbps": (float("nan"),)}, "(got nan)"),
        ({"workers": (0,)}, "workers: expected a whole number from 1 to 1,000,000 (got 0)"),
        ({"workers": (2_000_000,)}, "workers: expected a whole number from 1 to 1,000,000 (got 2000000)"),
        ({"latency_s": (-1.0,)}, "latency_s: expected a number from 0 to 1e9 (got -1.0)"),
        ({"compression": (0.5,)}, "compression: expected a number from 1 to 1e9 (got 0.5)"),
        (
            {"algorithm": ("star",)},
            "or 'two-level' (got 'star')",
        ),
        ({"workers": (2, 2)}, "workers: 2 is given twice"),
        ({"policies": ("lifo",)}, 'no policy "lifo"'),
        ({"policies": ()}, "policies: give at least 1 item"),
        ({"policies": ("fifo",) * 21}, "policies: give at most 20 items"),
        ({"baseline": True}, "baseline: expected text (got true)"),
        ({"policies": ("fifo", "fifo")}, "policies: fifo is given twice"),
        ({"baseline": "tio"}, 'baseline "tio" is not simulated: choose one of fifo'),
        ({"workers_per_node": 0, "intra_gbps": 1.0}, "workers_per_node: expected a whole number"),
        ({"workers_per_node": 4}, "workers_per_node needs intra_gbps: give both"),
        ({"target_efficiency": 1.5}, "target_efficiency: expected a number above 0 and at most 1 (got 1.5)"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    """The axis, the value, and what was expected."""
    with pytest.raises(InvalidOptions) as raised:
        Grid(**given)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_profile_that_cannot_answer_is_named() -> None:
    """No batch in the metadata; samples of one worker."""
    without = PLAIN.replace(metadata={})
    with pytest.raises(InvalidOptions, match='"plain" does not say in its metadata with which batch'):
        what_if(without, Grid(batch=(1.0,)))
    assert what_if(without, Grid(policies=("fifo",))).unit == "batches"
    alone = PLAIN.replace(workers=1, allreduce=AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1))
    with pytest.raises(InvalidOptions, match='"plain": a cost measured with one worker says nothing'):
        what_if(alone, Grid(workers=(2,)))


def test_documents_and_tables_hold_every_cell() -> None:
    """JSON survives a round trip; CSV has a line for each cell; unset axes are null and empty."""
    result = what_if(PLAIN, Grid(workers=(2, 4), policies=("fifo", "pace")))
    document = json.loads(json.dumps(result.to_document()))
    assert [cell["policy"] for cell in document["cells"]] == ["fifo", "pace"] * 2
    assert document["cells"][0]["bandwidth_gbps"] is None
    assert document["cells"][2]["workers"] == 4
    assert document["throughput_unit"] == "images/s"
    header, *lines = result.to_csv().splitlines()
    assert header.startswith("bandwidth_gbps,latency_s,workers")
    assert len(lines) == 4
    assert lines[0].split(",")[:3] == ["", "", "2"]


def test_an_estimate_grows_with_the_grid() -> None:
    """Some time for each point: a grid of a billion points takes over an hour, and is not run to find out."""
    axis = tuple(float(number) for number in range(1, 1001))
    huge = Grid(bandwidth_gbps=axis, compute_speedup=axis, batch=axis, policies=("pace",))
    assert huge.num_cells == 10**9
    assert estimate_s(VGG, huge) > 3600


def test_a_window_without_anything_is_answered() -> None:
    """No ops: nothing takes time, nothing is divided by."""
    empty = Profile(
        name="empty",
        workers=2,
        ops=(),
        gradients=(),
        allreduce=RingAllReduce(bandwidth_bytes_per_s=1.0, latency_s=0.0),
    )
    (cell,) = what_if(empty, Grid(policies=("fifo",))).cells
    assert (cell.throughput, cell.scaling_efficiency, cell.speedup) == (0.0, 1.0, 1.0)
