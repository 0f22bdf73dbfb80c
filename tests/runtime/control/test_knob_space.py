"""What places of a search mean: sizes on a logarithmic scale, orders, and plans that send everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.runtime.control.live_search import KnobSpace, tunable
from pace.runtime.engine.plan import GradientSize
from pace.runtime.options import Tune
from pace.runtime.transports.transport import Sequencing
from tests.strategies import properties

MIB = 1 << 20
SIZES = [GradientSize(name=f"g{n}", size_bytes=n * MIB, dtype="float32") for n in range(1, 9)]
TUNE = Tune(method="random")


def space(tune: Tune = TUNE, sequencing: Sequencing = "decision", suggested: float = MIB) -> KnobSpace:
    """Return the space of a model of 36 MiB."""
    return KnobSpace.of(tune, SIZES, sequencing, suggested)


def test_the_start_is_what_theory_says() -> None:
    """Parts and groups of delta0, four parts of credit, by priority."""
    found = space().settings(space().start)
    assert found["partition_bytes"] == pytest.approx(MIB, rel=1e-6)
    assert found["group_bytes"] == pytest.approx(MIB, rel=1e-6)
    assert found["credit_bytes"] == pytest.approx(4 * MIB, rel=1e-6)
    assert found["order"] == "priority"


def test_bytescheduler_sends_every_gradient_alone() -> None:
    """With its own two knobs only."""
    plan = space(Tune(method="random", knobs=("credit", "partition"))).plan(np.array([0.5, 0.5]))
    assert len(plan.groups) == len(SIZES)
    assert plan.order == "priority"


def test_credit_is_not_tuned_over_servers() -> None:
    """The other knobs keep their order; "first ready first" is to overtake."""
    assert tunable(TUNE, "keyed") == ("partition", "group", "order")
    assert tunable(Tune(method="random", knobs=("credit",)), "keyed") == ()
    assert space(sequencing="keyed").settings(np.array([0.5, 0.5, 0.0]))["order"] == "overtake"
    assert space().settings(np.array([0.5, 0.5, 0.5, 0.0]))["order"] == "static"


@given(st.lists(st.floats(-0.1, 1.1), min_size=4, max_size=4))
@properties(60)
def test_every_place_is_a_plan_that_sends_all_bytes(place: list[float]) -> None:
    """Whatever a search proposes, at the edges too: segments cover every group, none above its size."""
    found = space()
    plan, settings = found.plan(np.array(place)), found.settings(np.array(place))
    assert sum(segment.size_bytes for segment in plan.segments) == 36 * MIB
    assert max(segment.size_bytes for segment in plan.segments) <= settings["partition_bytes"] + 4
    assert [name for group in plan.groups for name in group.gradients] == [f"g{n}" for n in range(8, 0, -1)]


def test_a_model_of_a_few_bytes_has_one_size() -> None:
    """Nothing to divide by."""
    tiny = [GradientSize(name="g", size_bytes=8, dtype="float32")]
    found = KnobSpace.of(TUNE, tiny, "decision", 1e6)
    assert found.settings(found.start)["partition_bytes"] == 8
