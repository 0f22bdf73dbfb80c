"""From groups to a plan: among equally fast ones, the one that a slower network hurts least."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from pace import Profile
from pace.allreduce.optimize import plan_for
from pace.allreduce.realize import SLOWER_NETWORK, TIE, fastest_plan, window_when_slower
from pace.documents.options import Options
from pace.fusion.problem import FusionProblem
from pace.fusion.search import fuse
from pace.solver.cost import CostCurve
from pace.solver.sending import cut_while_sending, send_in_order
from tests.strategies import profiles, properties


@given(profiles())
@properties(60)
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
    chosen = fastest_plan(profile, problem, fusion, Options())
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
