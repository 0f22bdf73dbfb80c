"""Profiles with communication that no schedule moves: simulated, optimized, bounded and checked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Options, Profile, optimize
from pace.documents.profile import Gradient, Op, parse_profile
from pace.kinds import check
from pace.simulation import POLICIES, make_policy, run_policy
from pace.whatif.scenario import Scenario, computed_at
from tests.strategies import affine, profiles, properties


def _profile(exchange_s: float) -> Profile:
    """Two layers; an exchange behind b1 that f0 waits for, and one that b0 waits for.

    b1 ends at 1 s. b0 starts behind the first exchange and takes 1 s; f0 and f1 take 1 s each.
    """
    return Profile(
        name="exchanges",
        workers=4,
        ops=(
            Op(name="b1", duration_s=1.0, stream="compute"),
            Op(name="x0", duration_s=exchange_s, deps=("b1",), stream="net", kind="communication"),
            Op(name="b0", duration_s=1.0, deps=("x0",), stream="compute"),
            Op(name="x1", duration_s=exchange_s, deps=("b0",), stream="net", kind="communication"),
            Op(name="f0", duration_s=1.0, deps=("x1",), stream="compute", waits_for=("g0",)),
            Op(name="f1", duration_s=1.0, stream="compute", waits_for=("g1",)),
        ),
        gradients=(
            Gradient(name="g1", size_bytes=4, producer="b1"),
            Gradient(name="g0", size_bytes=2, dtype="float16", producer="b0"),
        ),
        allreduce=affine(0.0, 1.0),
    )


def test_all_reduces_run_beside_an_exchange() -> None:
    """g1 is ready at 1 and takes 4 s, g0 is ready at 5 and takes 2.

    With exchanges of 3 s: b0 runs from 4 to 5, x1 until 8, f0 until 9, f1 until 10. The network carries g1
    from 1 to 5 and g0 from 5 to 7: all of it is hidden behind the exchanges.
    """
    profile = _profile(3.0)
    assert profile.timing.compute_s == 10.0
    assert profile.timing.ready_s.tolist() == [1.0, 5.0]
    schedule = optimize(profile)
    assert schedule.predicted.iteration_s == 10.0
    assert schedule.predicted.lower_bound_s == 10.0
    assert run_policy(profile, make_policy("fifo")).iteration_s == 10.0
    assert check(profile, schedule) == []


def test_without_time_for_exchanges_all_reduces_are_what_takes_time() -> None:
    """g1 from 1 to 2, g0 from 2 to 4, g1 from 4 to 7, f1 until 8: the priority is that of the next pass."""
    profile = _profile(0.0)
    schedule = optimize(profile, Options(fusion="none"))
    assert schedule.predicted.ideal_iteration_s == 8.0
    assert run_policy(profile, make_policy("fifo")).iteration_s == 9.0
    assert check(profile, schedule) == []


def test_a_schedule_made_without_the_exchanges_is_refused() -> None:
    """Its times are not this profile's."""
    with_them, without = _profile(3.0), _profile(0.0)
    document = json.loads(optimize(without).to_json())
    document["profile_sha256"] = with_them.sha256
    forged = type(optimize(without)).model_validate_json(json.dumps(document))
    assert check(with_them, forged)


def test_a_faster_device_sends_no_sooner() -> None:
    """Compute takes half as long on it, exchanges as long as before; a double batch doubles both."""
    profile = _profile(3.0).replace(metadata={"batch": 16})
    faster = computed_at(profile, Scenario(compute_speedup=2.0))
    assert [op.duration_s for op in faster.ops] == [0.5, 3.0, 0.5, 3.0, 0.5, 0.5]
    larger = computed_at(profile, Scenario(batch=32.0))
    assert [op.duration_s for op in larger.ops] == [2.0, 6.0, 2.0, 6.0, 2.0, 2.0]


def test_the_kind_is_written_and_read_and_counts_for_the_digest() -> None:
    """Compute is what an op is that does not say: digests of older documents stay what they were."""
    profile = _profile(3.0)
    assert parse_profile(profile.to_json()) == profile
    assert profile.to_json().count(b'"kind": "communication"') == 2
    assert b'"kind": "compute"' not in profile.to_json()
    plain = profile.replace(ops=tuple(op.model_copy(update={"kind": "compute"}) for op in profile.ops))
    assert plain.sha256 != profile.sha256
    assert "kind" not in json.loads(plain.to_json())["ops"][1]


@given(profiles(max_gradients=5), st.data())
@properties(40)
def test_communication_among_ops_is_no_special_case(profile: Profile, data: st.DataObject) -> None:
    """Whichever ops it is: schedules pass the checker, and no policy is below the bound."""
    kinds = st.sampled_from(["compute", "communication"])
    ops = tuple(op.model_copy(update={"kind": data.draw(kinds)}) for op in profile.ops)
    changed = profile.replace(ops=ops)
    schedule = optimize(changed)
    assert check(changed, schedule) == []
    for name in POLICIES[:3]:
        least = schedule.predicted.lower_bound_s
        assert run_policy(changed, make_policy(name)).iteration_s >= least * (1 - 1e-9)
    assert run_policy(changed, make_policy("fifo")).iteration_s == pytest.approx(
        run_policy(profile, make_policy("fifo")).iteration_s
    )
