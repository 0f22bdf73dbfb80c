"""From groups to a plan: among equally fast ones, the one that a slower network hurts least."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from pace import Gradient, Op, Profile, make_policy, optimize
from pace.documents.collective_costs import SampledAllReduce
from pace.documents.options import Options
from pace.planning.allreduce.optimize import plan_for
from pace.planning.allreduce.realize import SLOWER_NETWORK, TIE, fastest_plan, window_when_slower
from pace.planning.fusion.oracle import PricingOracle
from pace.planning.fusion.problem import FusionProblem
from pace.planning.fusion.search import fuse
from pace.simulation import run_policy
from pace.solver.cost import CostCurve
from pace.solver.sending import cut_while_sending, send_in_order
from tests.strategies import profiles, properties


@given(profiles())
@properties(40)
def test_the_price_on_a_slower_network_is_that_of_sending_there(profile: Profile) -> None:
    """The closed form equals sending the same segments in the same order at the slower cost."""
    problem = FusionProblem.of(profile)
    plan = plan_for(profile)
    cost = problem.cost
    slower = CostCurve(
        sizes_bytes=cost.sizes_bytes,
        durations_s=tuple(SLOWER_NETWORK * duration for duration in cost.durations_s),
        slope_beyond=SLOWER_NETWORK * cost.slope_beyond,
    )
    sending = send_in_order(plan.buffers, plan.sending.groups, plan.sending.elements, slower)
    expected = max(sending.objective, problem.compute_s)
    assert window_when_slower(problem, plan) == pytest.approx(expected, rel=1e-12)


@given(profiles())
@properties(40)
def test_no_equally_fast_plan_stands_a_slower_network_better(profile: Profile) -> None:
    """Against every partition of the search, each sent whole."""
    problem = FusionProblem.of(profile)
    fusion = fuse(problem, Options())
    chosen = fastest_plan(profile, problem, fusion, Options(), PricingOracle(Options()))
    window = max(chosen.sending.objective, problem.compute_s)
    for partition in fusion.partitions:
        buffers = problem.buffers(partition)
        sending = cut_while_sending(buffers, problem.cost, patience_s=np.inf)
        if sending is None:
            continue
        other = replace(chosen, partition=partition, buffers=buffers, sending=sending)
        if max(sending.objective, problem.compute_s) <= window:
            assert window_when_slower(problem, chosen) <= window_when_slower(problem, other) * (1 + 1e-9)
        assert max(sending.objective, problem.compute_s) >= window / (1 + TIE) * (1 - 1e-9)


@given(profiles())
@properties(40)
def test_no_policy_of_whole_gradients_or_first_in_first_out_is_faster(profile: Profile) -> None:
    """Neither single gradients nor buckets, sent in order of ready time."""
    iteration = optimize(profile).predicted.iteration_s
    for policy in ("fifo", "ddp"):
        assert iteration <= run_policy(profile, make_policy(policy)).iteration_s * (1 + TIE)


def test_groups_that_end_first_are_tried_where_the_best_under_preemption_cannot_be_cut() -> None:
    """Compute takes 28 s, and the gradient of 16,000 bytes takes 8 s; cutting it would cost more.

    The best under free preemption puts all three into two groups and takes 34 s once it is cut.
    """
    names, sizes = ("last", "middle", "first"), (4_000, 16_000, 1_000)
    backward_s, forward_s = (2.0, 6.0, 8.0), (1.0, 4.0, 7.0)
    forward = [
        Op(name=f"fwd/{name}", duration_s=duration_s, stream="compute", waits_for=(name,))
        for name, duration_s in zip(names, forward_s, strict=True)
    ]
    profile = Profile(
        name="saturating",
        workers=2,
        ops=(
            *(
                Op(name=f"bwd/{name}", duration_s=duration_s, stream="compute")
                for name, duration_s in zip(names, backward_s, strict=True)
            ),
            *reversed(forward),
        ),
        gradients=tuple(
            Gradient(name=name, size_bytes=size, producer=f"bwd/{name}")
            for name, size in zip(names, sizes, strict=True)
        ),
        allreduce=SampledAllReduce(samples=((8_000, 4.0), (16_000, 8.0))),
    )
    assert optimize(profile).predicted.iteration_s == 32.0
    assert run_policy(profile, make_policy("fifo")).iteration_s == 32.0
