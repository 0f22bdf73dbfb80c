"""Plans of streaming DiLoCo: valid, never worse than other rules, optimal where enumeration can tell."""

import json
import random
from functools import cache
from typing import Any

import pytest

from pace.errors import InvalidOptions
from pace.solver.arrays import FloatArray
from pace_sync.checker.outer_sync import check_outer
from pace_sync.documents.outer_plan import parse_outer_plan
from pace_sync.documents.outer_sync import OuterLayer, OuterLink, OuterSync, parse_outer_sync
from pace_sync.errors import InvalidSync
from pace_sync.planning.outer.bandwidth import needed_bandwidth, scaled
from pace_sync.planning.outer.plan import plan_outer
from pace_sync.planning.outer.rivals import torchft_fragments
from pace_sync.planning.outer.simulation import simulate_outer
from pace_sync.solver.streaming.one_link import OneLinkTimes, send_in_order
from tests.pace_sync.planning.outer.outer_problems import outer_fields, small_outer
from tests.pace_sync.planning.problems import with_changes
from tests.pace_sync.solver.plans_of_small_models import best_period

FAST = {"name": "fast", "bytes_per_s": 30e6, "latency_s": 0.001}
SLOW = {"name": "slow", "bytes_per_s": 10e6, "latency_s": 0.05}
CASES: list[dict[str, Any]] = [
    {},
    {"cutting": "between-layers"},
    {"cutting": "none"},
    {"links": [FAST, SLOW]},
    {"links": [FAST, SLOW], "cutting": "between-layers"},
    {"max_delay_steps": 0},
    {"max_delay_steps": 1},
    {"max_delay_steps": 59},
    {"period_steps": 1, "max_delay_steps": 0},
    {"max_fragments": 2},
    {"max_fragments": 1, "links": [FAST, SLOW]},
    {"sent_fraction": 0.125},
    {"update_s_per_byte": 2e-8},
    {"update_s_per_byte": 2e-8, "cutting": "between-layers", "links": [FAST, SLOW]},
    {"layers": [{"name": "one", "size_bytes": 2, "dtype": "bfloat16"}]},
    {"layers": [{"name": f"l{n}", "size_bytes": 4 * (n * 7919 % 3001 + 1) * 400} for n in range(100)]},
    {"links": [{"name": "wan", "bytes_per_s": 1e3, "latency_s": 0.3}]},
]


@pytest.mark.parametrize("changed", CASES)
def test_plans_are_valid_and_never_worse(changed: dict[str, Any]) -> None:
    """The checker agrees, no other rule is better, and the same document gives the same bytes."""
    problem = small_outer(**changed)
    plan = plan_outer(problem)
    assert check_outer(problem, parse_outer_plan(plan.to_json())) == []
    assert plan.to_json() == plan_outer(problem).to_json()
    for rival in plan.rivals:
        assert plan.predicted.utilization >= rival.utilization * (1 - 1e-9)
    assert plan.predicted.utilization <= plan.bound.utilization * (1 + 1e-9)
    run = simulate_outer(problem, plan, periods=30)
    assert run.utilization >= plan.predicted.utilization * (1 - 1e-9)  # it begins with idle links


def test_the_outer_step_itself_takes_time() -> None:
    """Where everything is hidden, utilization is the share of compute; more time hides longer transfers."""
    quick, slow = small_outer(), small_outer(update_s_per_byte=5e-8)
    update_s = slow.size_bytes * 5e-8
    fast = scaled(slow, 1e6)
    assert plan_outer(fast).predicted.utilization == pytest.approx(
        slow.compute_s / (slow.compute_s + update_s), rel=1e-6
    )
    assert simulate_outer(fast, plan_outer(fast)).utilization == pytest.approx(
        plan_outer(fast).predicted.utilization, rel=1e-6
    )
    assert plan_outer(quick).predicted.period_s <= plan_outer(slow).predicted.period_s
    assert plan_outer(slow).predicted.period_s <= plan_outer(quick).predicted.period_s + update_s + 1e-9


@pytest.mark.parametrize(
    "changed", [each for each in CASES if "cutting" not in each and "max_fragments" not in each]
)
def test_cuts_anywhere_attain_the_bound(changed: dict[str, Any]) -> None:
    """But for rounding to elements, no plan is better."""
    assert plan_outer(small_outer(**changed)).predicted.gap < 1e-3


def test_whole_layers_are_optimal_on_one_link() -> None:
    """Enumeration of all groups and send steps finds nothing better; with two links, 5 % at most."""
    chance = random.Random(1)
    for trial in range(20):
        layers, steps = chance.randint(1, 3), chance.randint(1, 4)
        delay, links = chance.randint(0, steps - 1), 1 + trial % 2
        cutting = chance.choice(("none", "between-layers"))
        problem = OuterSync(
            name="tiny",
            layers=tuple(
                OuterLayer(name=str(n), size_bytes=4 * chance.randint(1, 24)) for n in range(layers)
            ),
            workers=2,
            step_s=1.0,
            period_steps=steps,
            max_delay_steps=delay,
            links=tuple(
                OuterLink(name=str(n), bytes_per_s=chance.choice((32, 20)), latency_s=chance.choice((0, 0.1)))
                for n in range(links)
            ),
            cutting=cutting,
        )
        plan = plan_outer(problem)
        judged = best_period(
            [layer.size_bytes for layer in problem.layers],
            [problem.call_s(link) for link in problem.links],
            [problem.seconds_per_byte(link) for link in problem.links],
            step_s=1.0,
            steps=steps,
            delay=delay,
            together=cutting != "none",
        )
        assert plan.bound.period_s <= judged * (1 + 1e-9)
        assert plan.predicted.period_s <= judged * (1.05 if links > 1 else 1 + 1e-9)


@pytest.mark.parametrize(("delay", "bound_s"), [(1, 50.0), (0, 60.0)])
def test_each_layer_that_is_a_fragment_has_its_latency(delay: int, bound_s: float) -> None:
    """By hand: ten transfers of 5 s. Without delay, none of the ten seconds of compute runs during them."""
    layers = [{"name": str(n), "size_bytes": 4} for n in range(10)]
    link = {"name": "far", "bytes_per_s": 1e9, "latency_s": 2.5}
    problem = small_outer(
        layers=layers,
        links=[link],
        cutting="none",
        workers=2,
        step_s=1.0,
        period_steps=10,
        max_delay_steps=delay,
    )
    plan = plan_outer(problem)
    assert plan.bound.period_s == pytest.approx(bound_s)
    assert plan.predicted.gap < 0.1
    assert check_outer(problem, plan) == []
    praised = plan.bound.model_copy(update={"period_s": plan.bound.period_s * 1.01})
    assert any("bound.period_s is" in each for each in check_outer(
        problem, plan.model_copy(update={"bound": praised})
    ))  # fmt: skip


@pytest.mark.parametrize(("rates", "delay", "most"), [([20e6], 5, 10), ([10e6, 5e6], 100, 40)])
def test_many_whole_layers_take_little_work(
    rates: list[float], delay: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups whose bound is no better than the best plan so far are not timed: most of 44 a link."""
    timed: list[int] = []

    def counted(transfer_s: FloatArray, step_lengths_s: FloatArray, most_delay: int) -> OneLinkTimes:
        timed.append(len(transfer_s))
        return send_in_order(transfer_s, step_lengths_s, most_delay)

    monkeypatch.setattr("pace_sync.planning.outer.plan.send_in_order", counted)
    layers = [{"name": f"l{n}", "size_bytes": 1600 * (n * 7919 % 3001 + 1)} for n in range(400)]
    fields = {"cutting": "between-layers", "layers": layers, "period_steps": 500, "max_delay_steps": delay}
    links = [{"name": f"{rate}", "bytes_per_s": rate, "latency_s": 0.001} for rate in rates]
    problem = small_outer(links=links, **fields)
    plan = plan_outer(problem)
    assert 0 < len(timed) <= most
    assert plan.predicted.gap < 2e-3
    assert check_outer(problem, plan) == []


def test_torchft_plans_have_its_form() -> None:
    """Equal turns, one delay less than a turn, whole layers, one link; what has no such form is refused."""
    problem = small_outer(links=[FAST, SLOW])
    plan = plan_outer(problem, torchft=True)
    assert check_outer(problem, plan) == []
    (delay,) = {fragment.delay_steps for fragment in plan.fragments}
    turn = 60 // len(plan.fragments)
    assert delay == min(5, turn - 1)
    assert sorted((each.send_step + delay) % 60 for each in plan.fragments) == list(range(0, 60, turn))
    assert {fragment.link for fragment in plan.fragments} == {"fast"}
    with pytest.raises(InvalidSync, match="a multiple of its 13 fragments"):
        plan_outer(small_outer(cutting="none"), torchft=True)
    assert plan.predicted.utilization <= plan_outer(problem).predicted.utilization


def test_torchft_blocks_for_what_does_not_fit_its_delay() -> None:
    """By hand: one fragment of 160 MB takes 4.006 s over 60 MB/s, five steps of 0.1 s run meanwhile."""
    problem = small_outer()
    (fragment,) = torchft_fragments(problem, 1, 5)
    assert (fragment.send_step, fragment.delay_steps, fragment.size_bytes) == (55, 5, 160_000_000)
    rival = next(each for each in plan_outer(problem).rivals if each.rule == "torchft, one fragment")
    assert rival.utilization == pytest.approx(6 / (6 + 4.006 - 0.5))


def test_needed_bandwidth() -> None:
    """A plan needs little more than the bound, less than others, and the factor does what it says."""
    problem = small_outer()
    needed = needed_bandwidth(problem, 0.95)
    assert needed.plan is not None
    assert needed.bound is not None
    assert needed.torchft is not None
    assert needed.bound <= needed.plan <= 1.002 * needed.bound
    assert needed.plan <= 0.8 * needed.torchft
    assert plan_outer(scaled(problem, needed.plan)).predicted.utilization >= 0.95
    assert plan_outer(scaled(problem, 0.98 * needed.plan)).predicted.utilization < 0.95
    with pytest.raises(InvalidOptions, match=r"utilization 1\b"):
        needed_bandwidth(problem, 1.0)


def test_latency_alone_can_be_too_much() -> None:
    """Where no bandwidth is enough, there is no factor."""
    problem = small_outer(max_delay_steps=0, links=[FAST | {"latency_s": 5.0}])
    assert needed_bandwidth(problem, 0.95).plan is None


def test_steps_that_vary() -> None:
    """With jitter, slower workers hide more of a transfer; the same seed gives the same run."""
    problem = small_outer(links=[{"name": "wan", "bytes_per_s": 41e6}])
    plan = plan_outer(problem)
    first, again = (simulate_outer(problem, plan, jitter=0.1, seed=3) for _ in range(2))
    assert first == again
    assert first != simulate_outer(problem, plan, jitter=0.1, seed=4)
    with pytest.raises(InvalidOptions, match="periods 0"):
        simulate_outer(problem, plan, periods=0)
    with pytest.raises(InvalidSync, match="another outer-sync document"):
        simulate_outer(small_outer(), plan)


WAN = small_outer(links=[{"name": "wan", "bytes_per_s": 38e6, "latency_s": 0.001}])


@cache
def planned() -> bytes:
    """Return a plan of one link."""
    return plan_outer(WAN).to_json()


def corrupted(**changed: Any) -> list[str]:
    """Return what the checker says of a plan with other fields."""
    return check_outer(WAN, parse_outer_plan(with_changes(planned(), changed)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem_sha256": "0" * 64}, "another outer-sync document"),
        ({"period_steps": 61}, "period_steps is 61"),
        ({"waits": []}, "steps and waits take"),
        ({"predicted__period_s": 6.0}, "predicted.period_s is 6.0"),
        ({"predicted__utilization": 1.0}, "predicted.utilization is 1.0"),
        ({"predicted__gap": 1.0}, "predicted.gap is 1.0"),
        ({"predicted__most_under_way": 9}, "predicted.most_under_way is 9"),
        ({"fragments__1__delay_steps": 6}, "max_delay_steps is 5"),
        ({"fragments__1__delay_steps": 1}, "fragment 1: end_s is"),
        ({"fragments__1__start_s": 0.0}, "fragment 1: its transfer takes"),
        ({"fragments__1__link": "none"}, 'no link "none"'),
        ({"fragments__1__send_step": 7}, "it is sent at"),
        ({"bound__period_s": 6.5}, "bound.period_s is 6.5"),
        ({"bound__period_s": 1e17}, "links can carry"),
    ],
)
def test_wrong_plans_are_found(changed: dict[str, Any], said: str) -> None:
    """Each corruption is named."""
    assert any(said in violation for violation in corrupted(**changed)), corrupted(**changed)
    assert corrupted() == []


def test_a_busy_link_is_found() -> None:
    """Two fragments at a time on one link are no plan."""
    document = json.loads(planned())
    one, two = document["fragments"][1:3]
    late = one["end_s"] - two["start_s"] - 0.05
    two["start_s"], two["end_s"] = two["start_s"] + late, two["end_s"] + late
    found = check_outer(WAN, parse_outer_plan(json.dumps(document)))
    assert any('link "wan" is busy' in violation for violation in found), found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_delay_steps": 60}, "max_delay_steps 60 is not less than period_steps 60"),
        ({"workers": 1}, "workers: expected a whole number of at least 2"),
        ({"layers": [{"name": "t", "size_bytes": 3}]}, "no multiple of float32's 4 bytes"),
        ({"layers": [{"name": "t", "size_bytes": 4}] * 2}, 'two layers are named "t"'),
        ({"links": []}, "at least 1 item"),
        ({"links": [FAST, FAST]}, 'two links are named "fast"'),
        ({"cutting": "none", "max_fragments": 2}, "each layer is a fragment"),
        ({"step_s": 1e17}, "a period may take"),
        ({"step_s": 1e18}, "step_s: expected a number above 0 and below 1e18"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
    ],
)
def test_impossible_documents_are_refused(changed: dict[str, Any], said: str) -> None:
    """With a line that names the place."""
    with pytest.raises(InvalidSync, match=said):
        parse_outer_sync(json.dumps(outer_fields(**changed)))


@pytest.mark.parametrize("latency_s", [0.0, 1000.0])
def test_bytes_that_take_less_time_than_rounding_are_sent(latency_s: float) -> None:
    """The bound then leaves no room for them."""
    link = {"name": "wan", "bytes_per_s": 9e17, "latency_s": latency_s}
    problem = small_outer(links=[link], step_s=1e4, max_delay_steps=0)
    plan = plan_outer(problem)
    assert check_outer(problem, plan) == []
    assert plan.predicted.period_s == pytest.approx(plan.bound.period_s, rel=1e-6)


def test_jitter_of_too_many_steps_is_refused() -> None:
    """Each worker's time is drawn for each step."""
    problem = small_outer(workers=2**31)
    with pytest.raises(InvalidOptions, match="give fewer periods, or no jitter"):
        simulate_outer(problem, plan_outer(problem), jitter=0.1)
