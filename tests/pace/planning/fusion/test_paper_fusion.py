"""Fusion "paper" against Algorithm 1 of the PACE paper, transcribed without the project's code."""

import random

import numpy as np
import pytest

from pace import Gradient, InvalidOptions, Op, Options, Profile, optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.models import build
from pace.planning.fusion.search import by_momentum
from pace.solver.partition import max_min_partitions

CHAINS = 1_000

Groups = list[list[int]]


def max_min_size(sizes: list[int], start: int, num_groups: int) -> tuple[int, Groups]:
    """Return f_R(i) = max over j of min(S(i..j), f_{R-1}(j + 1)), and the runs of the first such j."""
    if num_groups == 1:
        return sum(sizes[start:]), [list(range(start, len(sizes)))]
    best, runs = -1, []
    for j in range(start, len(sizes) - num_groups + 1):
        rest, following = max_min_size(sizes, j + 1, num_groups - 1)
        value = min(sum(sizes[start : j + 1]), rest)
        if value > best:
            best, runs = value, [list(range(start, j + 1)), *following]
    return best, runs


def preemptive_window(jobs: list[tuple[int, int, int]]) -> int:
    """Return the window of jobs (ready, duration, tail): one second at a time to the longest tail."""
    left = [duration for _, duration, _ in jobs]
    now = window = 0
    while any(left):
        waiting = [at for at, (ready, _, _) in enumerate(jobs) if ready <= now and left[at]]
        now += 1
        if waiting:
            served = max(waiting, key=lambda at: jobs[at][2])
            left[served] -= 1
            window = max(window, now + jobs[served][2])
    return window


def algorithm_1(sizes: list[int], latency: int, ready: list[int], tail: list[int]) -> tuple[int, Groups]:
    """Price the MaxMinSize partition of every R with the oracle; the first R with the least window wins."""
    best: tuple[int, Groups] | None = None
    for num_groups in range(1, len(sizes) + 1):
        _, groups = max_min_size(sizes, 0, num_groups)
        window = preemptive_window(
            [
                (max(ready[i] for i in run), latency + sum(sizes[i] for i in run), max(tail[i] for i in run))
                for run in groups
            ]
        )
        if best is None or window < best[0]:
            best = window, groups
    assert best is not None
    return best


def profile_of(sizes: list[int], latency: int, ready: list[int], tail: list[int]) -> Profile:
    """Build a profile whose gradients have these sizes in bytes, ready times and tails in seconds."""
    numbers = range(len(sizes))
    return Profile(
        name="chain",
        workers=2,
        ops=(
            *(Op(name=f"bwd/{i}", duration_s=ready[i]) for i in numbers),
            *(
                Op(name=f"fwd/{i}", duration_s=tail[i], deps=(f"bwd/{i}",), waits_for=(f"{i}",))
                for i in numbers
            ),
        ),
        gradients=tuple(
            Gradient(name=f"{i}", size_bytes=sizes[i], dtype="uint8", producer=f"bwd/{i}") for i in numbers
        ),
        allreduce=AffineAllReduce(latency_s=latency, seconds_per_byte=1.0),
    )


def groups_of(profile: Profile, options: Options) -> tuple[float, Groups]:
    """Return the ideal window and the groups of the schedule, in order of ready time."""
    schedule = optimize(profile, options)
    groups = sorted(sorted(int(name) for name in group.tensors) for group in schedule.groups)
    return schedule.predicted.ideal_iteration_s, groups


def test_later_runs_are_best_for_themselves() -> None:
    """{4} {4} {1, 8} and {4} {4, 1} {8} have a smallest run of 4; the recursion gives the second: 33 s."""
    case = ([4, 4, 1, 8], 4, [1, 5, 6, 11], [3, 4, 6, 10])
    assert algorithm_1(*case) == (33, [[0], [1, 2], [3]])
    assert groups_of(profile_of(*case), Options(fusion="paper")) == algorithm_1(*case)


def test_every_partition_is_that_of_the_recursion() -> None:
    """1,000 random chains, every R: the same runs, and the same choice among partitions of equal value."""
    draw = random.Random(1)
    for _ in range(CHAINS):
        sizes = [draw.randint(1, draw.choice([3, 9, 50])) for _ in range(draw.randint(1, 9))]
        found = list(max_min_partitions(np.array(sizes, dtype=np.int64)))
        literal = [max_min_size(sizes, 0, number)[1] for number in range(1, len(sizes) + 1)]
        assert found == [[run[0] for run in groups] for groups in literal], sizes


def test_the_schedule_is_that_of_algorithm_1() -> None:
    """1,000 random chains, with any order of tails, by longest tail first and in slots of one second."""
    draw = random.Random(2)
    for number in range(CHAINS):
        length = draw.randint(1, 8)
        sizes = [draw.randint(1, 9) for _ in range(length)]
        # Distinct ready times: gradients that are ready at the same time have no order in the paper.
        ready = sorted(draw.sample(range(1, 30), length))
        tail = [draw.randint(0, 15) for _ in range(length)]
        case = (sizes, draw.randint(0, 6), ready, sorted(tail) if number % 2 else tail)
        window, groups = algorithm_1(*case)
        compute = max(r + q for r, q in zip(case[2], case[3], strict=True))
        options = Options(fusion="paper", slot_s=1.0 if number % 3 == 0 else None)
        assert compute <= window
        assert groups_of(profile_of(*case), options) == (window, groups), case


def test_the_linear_program_prices_the_same_partitions() -> None:
    """The paper's own oracle, on chains of up to six gradients."""
    draw = random.Random(3)
    for _ in range(20):
        length = draw.randint(2, 6)
        sizes = [draw.randint(1, 9) for _ in range(length)]
        ready = sorted(draw.sample(range(1, 20), length))
        case = (sizes, draw.randint(0, 4), ready, [draw.randint(0, 9) for _ in range(length)])
        options = Options(fusion="paper", oracle="lp", slot_s=1.0)
        assert groups_of(profile_of(*case), options) == algorithm_1(*case), case


def test_momentum_prices_a_quarter_of_all_numbers_of_groups() -> None:
    """Its schedule has the MaxMinSize partition of one R, and is never shorter than the best of all R."""
    profile = build("resnet50", device_tflops=8.0, batch=32, workers=8)
    every = optimize(profile, Options(fusion="paper"))
    some = optimize(profile, Options(fusion="paper", search_r="momentum"))
    window = every.predicted.ideal_iteration_s
    assert window <= some.predicted.ideal_iteration_s <= 1.01 * window
    priced: list[int] = []

    def price(num_groups: int) -> float:
        priced.append(num_groups)
        return float(abs(num_groups - 40))

    by_momentum(157, price)
    assert len(priced) == len(set(priced)) <= 157 // 4
    assert "by momentum" in (some.solver.method or "")


def test_momentum_solves_fewer_programs() -> None:
    """With the linear program as the oracle, each R that is tried costs one program."""
    draw = random.Random(4)
    sizes, tail = [draw.randint(1, 9) for _ in range(32)], sorted(draw.randint(0, 15) for _ in range(32))
    profile = profile_of(sizes, 0, list(range(1, 33)), tail)
    options = Options(fusion="paper", oracle="lp", slot_s=1.0)
    every = optimize(profile, options)
    some = optimize(profile, options.model_copy(update={"search_r": "momentum"}))
    assert (every.solver.num_programs or 0) >= 32 > 10 > (some.solver.num_programs or 0) > 0


def test_momentum_is_refused_where_it_does_not_apply() -> None:
    """In one line."""
    with pytest.raises(InvalidOptions, match='search_r "momentum" is for fusion "paper", not "optimal"'):
        Options(search_r="momentum")
    with pytest.raises(InvalidOptions, match="cannot keep max_group_bytes: leave one of them out"):
        Options(search_r="momentum", fusion="paper", max_group_bytes=9)
