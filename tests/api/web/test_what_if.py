"""What-if questions: answers follow the sliders and the link, and what is superseded is cancelled."""

import re
from collections.abc import Callable

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Request, expect

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller
from tests.api.profiles import layered_profile
from tests.api.web.chromium import Visitor
from tests.api.web.visits import task_states, until

pytestmark = ON_SQLITE

TIMES = "\N{MULTIPLICATION SIGN}"
# A question about it, with policies that are slow to simulate, takes a fast machine several seconds.
LARGE = layered_profile(10_000)


def is_asked(request: Request) -> bool:
    """Whether this is a question."""
    return request.method == "POST" and request.url.endswith("/v1/what-if")


def asks_at(compute_speedup: float) -> Callable[[Request], bool]:
    """Return whether a request is a question about compute of this speed."""

    def asks(request: Request) -> bool:
        asked = request.post_data_json if is_asked(request) else None
        return asked is not None and asked["grid"].get("compute_speedup") == [compute_speedup]

    return asks


def test_answers_follow_the_sliders_and_the_link(visitor: Visitor, service: Caller) -> None:
    """The swept answer is the service's; the link shows the same."""
    made = service.http.post("/v1/profiles", json=layered_profile(6)).json()
    page = visitor.go(f"what-if?profile={made['id']}&policies=pace,ddp&low=1&high=20")
    points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
    expect(points).to_have_count(28)
    page.wait_for_selector("canvas")
    page.get_by_label("Workers, slider").fill("40")
    page.get_by_role("group", name="What is drawn").get_by_role("button", name="Throughput").click()
    expect(page).to_have_url(re.compile("workers=200.*metric=throughput"))
    page.get_by_label("Over", exact=True).select_option("compression")
    expect(page.get_by_role("button", name="Compression, times")).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    latest = service.http.get("/v1/what-if").json()["items"][0]
    cells = service.http.get(f"/v1/what-if/{latest['id']}").json()["what_if"]["cells"]
    assert {cell["workers"] for cell in cells} == {200}
    assert len({cell["compression"] for cell in cells}) > 10
    first = points.first.inner_text()
    visitor.go(f"what-if?profile={made['id']}&policies=pace,ddp&workers=200&over=compression")
    expect(points.first).to_have_text(re.compile(re.escape(first.split()[0])))
    assert points.first.inner_text() == first


def test_it_opens_on_the_curve_that_answers(visitor: Visitor, service: Caller) -> None:
    """Speed-up over DDP against bandwidth, with units, and a sentence with the service's numbers."""
    ring = {"kind": "ring", "bandwidth_bytes_per_s": 1.25e9, "latency_s": 1e-5}
    profile = layered_profile(6) | {"allreduce": ring}
    made = service.http.post("/v1/profiles", json=profile).json()
    page = visitor.go(f"what-if?profile={made['id']}")
    expect(page.get_by_role("heading", name="Speed-up over PyTorch DDP against bandwidth")).to_be_visible()
    expect(
        page.get_by_role("figure", name="Speed-up over PyTorch DDP over Bandwidth, Gbit/s")
    ).to_be_visible()
    answer = page.locator(".verdict")
    expect(answer).to_contain_text("largest")
    # The curve, and twice as many points again around its largest speed-up.
    asked = service.http.get("/v1/what-if").json()["items"]
    answers = [service.http.get(f"/v1/what-if/{each['id']}").json()["what_if"]["cells"] for each in asked]
    assert len(answers) == 3
    pace = sorted(
        (cell for cells in answers for cell in cells if cell["policy"] == "pace"),
        key=lambda cell: cell["bandwidth_gbps"],
    )
    most = max(pace, key=lambda cell: cell["speedup"])
    expect(answer).to_contain_text(
        f"The largest simulated speed-up is {most['speedup']:.4g}{TIMES}, "
        f"at bandwidth {most['bandwidth_gbps']:.4g} Gbit/s (the nearest simulated points: "
    )
    at = pace.index(most)
    beside = [pace[place]["bandwidth_gbps"] for place in (at - 1, at + 1) if 0 <= place < len(pace)]
    expect(answer).to_contain_text(" and ".join(f"{value:.4g}" for value in beside) + " Gbit/s")
    assert max(beside) / min([*beside, most["bandwidth_gbps"]]) < 1.02
    (near,) = (cell for cell in pace if cell["bandwidth_gbps"] == 10)
    expect(answer).to_contain_text(
        f"At the profiled bandwidth 10 Gbit/s, PACE is {near['speedup']:.4g}{TIMES} as fast as PyTorch DDP"
    )
    points = page.get_by_role("region", name="Simulated points")
    expect(points.get_by_role("button", name="Speed-up")).to_be_visible()
    expect(points.locator("tbody tr").first).to_contain_text(TIMES)


def test_a_curve_without_comparison_is_simulated_once(visitor: Visitor, service: Caller) -> None:
    """There is no largest speed-up to search for."""
    made = service.http.post("/v1/profiles", json=layered_profile(6)).json()
    page = visitor.go(f"what-if?profile={made['id']}&policies=pace")
    page.wait_for_selector("canvas")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    assert len(service.http.get("/v1/what-if").json()["items"]) == 1


@pytest.mark.races_with_machine(reason="a question is superseded while its task runs")
def test_what_is_superseded_is_cancelled(visitor: Visitor, service: Caller) -> None:
    """At once after it was asked, while its progress is shown, and when its view is left; none goes on."""
    large = service.http.post("/v1/profiles", json=LARGE).json()
    page = visitor.page
    answers: list[int] = []
    page.on("response", lambda answer: answers.append(answer.status) if is_asked(answer.request) else None)
    with page.expect_request(is_asked):
        visitor.go(f"what-if?profile={large['id']}&policies=pace,ddp,bytescheduler,fifo,horovod")
    page.get_by_label("Latency of a message, µs", exact=True).fill("2")
    with page.expect_request(is_asked):
        page.get_by_label("Latency of a message, µs", exact=True).blur()
    assert len(answers) <= 1  # the first was superseded before the page knew its task, or just after
    until(page, lambda: "cancelled" in task_states(service, "what-if"))
    page.get_by_role("status").filter(has_text=re.compile("Simulating: (waiting|\\d+ of 70)")).wait_for()
    page.get_by_label("Compute speed, times", exact=True).fill("2")
    with page.expect_request(is_asked):
        page.get_by_label("Compute speed, times", exact=True).blur()
    until(page, lambda: task_states(service, "what-if").count("cancelled") == 2)
    page.get_by_role("link", name="Keys").click()
    until(page, lambda: task_states(service, "what-if") == ["cancelled"] * 3)


def test_what_is_being_typed_stays_while_progress_is_shown(visitor: Visitor, service: Caller) -> None:
    """The view is drawn anew with each step of an answer; the field keeps what is in it until it is left."""
    large = service.http.post("/v1/profiles", json=LARGE).json()
    page = visitor.go(f"what-if?profile={large['id']}&policies=pace,sharded&compute=2")
    field = page.get_by_label("Compute speed, times", exact=True)
    field.fill("3")
    shown = page.get_by_role("status").filter(has_text=re.compile(r"Simulating: [1-9]\d* of 28"))
    shown.wait_for()
    before = shown.inner_text()
    until(page, lambda: page.get_by_role("status").filter(has_text=before).count() == 0)
    expect(shown).to_be_visible()
    expect(field).to_have_value("3")
    with page.expect_request(is_asked):
        field.blur()
    expect(page).to_have_url(re.compile("compute=3"))
    page.get_by_role("link", name="Keys").click()
    until(page, lambda: task_states(service, "what-if") == ["cancelled"] * 2)


def test_a_question_asked_again_while_it_is_cancelled_is_answered(visitor: Visitor, service: Caller) -> None:
    """Going back and forth between two values shows the answer of the last, not that it was cancelled."""
    made = service.http.post("/v1/profiles", json=layered_profile(600)).json()
    page = visitor.page
    field = page.get_by_label("Compute speed, times", exact=True)
    with page.expect_request(is_asked):
        visitor.go(f"what-if?profile={made['id']}&policies=pace,ddp&compute=2")
    for speed in (3, 2, 3, 2):
        field.fill(str(speed))
        # Not what the question before asks once more, around its best point.
        with page.expect_request(asks_at(speed)):
            field.blur()
    points = page.get_by_role("region", name="Simulated points").locator("tbody tr")
    expect(points).to_have_count(28)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
