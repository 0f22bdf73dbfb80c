"""The rows of the chart side by side: colors, what is hovered, slow policies, and the reason in words."""

import re
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import expect

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import drawn, milliseconds

pytestmark = ON_SQLITE

_COLORS = """async (answer) => {
    const { windowBands } = await import("/web/windows.js");
    const network = windowBands(answer, []).flatMap(({ lanes }) => lanes.filter(({ carried }) => carried));
    return network.flatMap(({ starts, kinds, carried }) =>
        Array.from(starts, (_, item) => [carried(item).gradients[0], kinds[item]]));
}"""


def solved(caller: Caller, num_layers: int, duration_s: float) -> dict[str, Any]:
    """Have a profile scheduled; return the schedule's resource."""
    made: dict[str, Any] = caller.post_schedule(layered_profile(num_layers, duration_s=duration_s)).json()
    return made


def test_a_gradient_has_one_color_in_every_row(visitor: Visitor, service: Caller) -> None:
    """That of its group in the schedule, whatever other policies put together."""
    made = solved(service, 40, 0.0001)
    asked = {
        "profile_id": made["profile_sha256"],
        "schedule_id": made["id"],
        "policies": ["ddp", "fifo", "bytescheduler", "horovod"],
    }
    answer = service.http.post("/v1/simulations/windows", json=asked).json()
    colors: dict[str, set[int]] = {}
    for gradient, kind in visitor.go().evaluate(_COLORS, answer):
        colors.setdefault(gradient, set()).add(kind)
    assert len(colors) == 40
    assert {len(kinds) for kinds in colors.values()} == {1}
    assert len(set().union(*colors.values())) > 1


def test_what_is_chosen_is_marked_in_every_row(visitor: Visitor, service: Caller) -> None:
    """The transfers of its gradients under all policies; of compute none."""
    made = solved(service, 12, 0.001)
    page = visitor.go(f"result?schedule={made['id']}&policies=fifo,p3")
    drawn(page)
    bands = page.locator(".gantt .band-title")
    expect(bands).to_have_count(4)
    page.get_by_role("application").focus()
    # From the compute of the first row to its network, and back.
    marked = page.locator(".gantt .alike[d^=M]")
    page.keyboard.press("ArrowDown")
    expect(marked).to_have_count(4)
    page.keyboard.press("ArrowUp")
    expect(marked).to_have_count(0)


def test_a_slow_policy_does_not_squeeze_the_others(visitor: Visitor, service: Caller) -> None:
    """The chart begins with PACE and DDP; what ends beyond it says where, and can be looked at."""
    made = solved(service, 200, 0.00002)
    page = visitor.go(f"result?schedule={made['id']}&policies=fifo")
    drawn(page)
    beyond = page.locator(".gantt .beyond")
    expect(beyond).to_have_text(re.compile("^ends at .* ms ▸$"))
    page.get_by_role("button", name="Whole window").click()
    expect(beyond).to_have_count(0)


@pytest.mark.parametrize(
    ("duration_s", "reason"),
    [
        (
            0.0001,
            r"The network limits this job: [\d.]+ .?s of all-reduces must follow the first [\d.]+ .?s"
            r", plus [\d.]+ .?s of compute\.",
        ),
        (1.0, r"Compute limits this job: the network adds at least [\d.]+ .?s\."),
    ],
)
def test_the_reason_is_said_in_words(
    visitor: Visitor, service: Caller, duration_s: float, reason: str
) -> None:
    """What limits the job; and nothing that is simulated or predicted is called otherwise."""
    made = solved(service, 20, duration_s)
    page = visitor.go(f"result?schedule={made['id']}")
    drawn(page)
    headline = page.get_by_role("region", name="Result")
    expect(headline).to_contain_text(re.compile(reason))
    expect(headline).to_contain_text("PyTorch DDP, simulated")
    expect(headline).to_contain_text("PACE, predicted")
    expect(page.get_by_text(re.compile(r"\bNow\b"))).to_have_count(0)


def test_what_the_network_adds_is_told_by_the_bound(visitor: Visitor, service: Caller) -> None:
    """Other groups may add less than those of the certificate, so "at least" is not about these."""
    schedule = solved(service, 20, 1.0)["schedule"]
    compute_s, bound_s = (schedule["predicted"][name] for name in ("compute_s", "lower_bound_s"))
    assert schedule["proofs"][0]["bound_s"] - compute_s > 2 * (bound_s - compute_s)
    page = visitor.go(f"result?profile={schedule['profile_sha256']}")
    headline = page.get_by_role("region", name="Result")
    expect(headline).to_contain_text(f"the network adds at least {(bound_s - compute_s) * 1e6:.0f} µs.")
    expect(page.get_by_role("heading", name="1 group in")).to_be_visible()


def test_numbers_of_the_reason_are_marked_in_the_chart(visitor: Visitor, service: Caller) -> None:
    """Each marks its part of the certificate; where another bound is lower, the page says why."""
    made = solved(service, 40, 0.0001)["schedule"]
    page = visitor.go(f"result?profile={made['profile_sha256']}")
    drawn(page)
    marked = page.locator(".gantt .chosen")
    widths = []
    numbers = page.get_by_role("region", name="Result").locator("button.in-text")
    for number in range(numbers.count()):
        numbers.nth(number).hover()
        widths.append(float(marked.get_attribute("width") or 0))
    assert len(widths) == 3
    assert min(widths) > 0
    assert len(set(widths)) == 3
    numbers.first.blur()
    page.get_by_role("heading", name="One iteration").hover()
    expect(marked).to_have_attribute("width", "0")
    (proof,) = made["proofs"]
    predicted = made["predicted"]
    other = page.get_by_text("So other groups save at most")
    if abs(proof["bound_s"] - predicted["lower_bound_s"]) < 1e-6 * predicted["lower_bound_s"]:
        expect(other).to_have_count(0)
    else:
        expect(other).to_contain_text(milliseconds(predicted["iteration_s"] - predicted["lower_bound_s"]))
