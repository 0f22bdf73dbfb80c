"""The page with a schedule of 10,000 gradients: time until its chart is drawn, comparisons, and frames.

    python -m benchmarks web_page [--gradients N] [--json OUT]

Needs Debian's chromium-headless-shell and the development packages. A service of its own solves a chain of
layers first. The page's time is then that of a stored schedule: to fetch it, to lay out three policies'
iterations, and to draw them. Then one more policy is chosen, and the schedule is compared with itself. The
browser reports which of the page's tasks took over 50 ms. Ratios are to a schedule of a hundred gradients in
the same run.
"""

import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_program
from benchmarks.harness.serving import TIMEOUT_S, large_profile, service

FRAMES = 120
# Keeps what the browser's performance timeline says of tasks over 50 ms.
LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration)))
  .observe({ type: "longtask", buffered: true });
"""
# Every frame's length while the chart is dragged from side to side, in milliseconds.
PAN = """
async (frames) => {
  const svg = document.querySelector(".gantt svg");
  const box = svg.getBoundingClientRect();
  const [left, clientY] = [box.left, box.top + 60];
  const at = (x) => ({ clientX: left + x, clientY, bubbles: true, pointerId: 1, button: 0 });
  svg.setPointerCapture = () => {};
  svg.dispatchEvent(new PointerEvent("pointerdown", at(box.width / 2)));
  const lengths = [];
  let last = await new Promise(requestAnimationFrame);
  for (let frame = 0; frame < frames; frame += 1) {
    svg.dispatchEvent(new PointerEvent("pointermove", at(box.width / 2 + 150 * Math.sin(frame / 8))));
    const now = await new Promise(requestAnimationFrame);
    lengths.push(now - last);
    last = now;
  }
  svg.dispatchEvent(new PointerEvent("pointerup", at(box.width / 2)));
  return lengths;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTimes:
    """What a visitor of one schedule waits for, in seconds; frames and tasks in milliseconds."""

    gradients: int
    solve_s: float
    first_paint_s: float
    chart_s: float
    one_more_policy_s: float
    compare_s: float
    longest_task_ms: float
    long_tasks_while_panning: int
    shapes_bytes: int
    median_frame_ms: float
    longest_frame_ms: float


def layers(count: int) -> dict[str, Any]:
    """Return a chain of layers with a gradient each, whose communication is about as long as compute."""
    profile = large_profile(count, per_layer=1)
    for op in profile["ops"]:
        op["duration_s"] = 2e-5 if op["name"].startswith("bwd/") else 1e-5
    for at, gradient in zip(reversed(range(count)), profile["gradients"], strict=True):
        gradient["size_bytes"] = 4 * (2000 + 7919 * at % 9000)
    return profile


def measure(browser: Browser, url: str, count: int) -> PageTimes:
    """Have a schedule solved, open it, and pan its chart."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        began = time.perf_counter()
        answer = http.post("/v1/schedules", json={"profile": layers(count)})
        answer.raise_for_status()
        solve_s = time.perf_counter() - began
        schedule_id = answer.json()["id"]
    context = browser.new_context(viewport={"width": 1920, "height": 1080})
    context.set_default_timeout(TIMEOUT_S * 1e3)
    context.add_init_script(LONG_TASKS)
    page: Page = context.new_page()
    began = time.perf_counter()
    page.goto(f"{url}/#result?schedule={schedule_id}")
    page.wait_for_selector(".gantt path[d^=M]")
    chart_s = time.perf_counter() - began
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    before = page.evaluate("longTasks.length")
    frames = sorted(page.evaluate(PAN, FRAMES))
    long_while_panning = page.evaluate("longTasks.length") - before
    shapes = page.evaluate(
        "[...document.querySelectorAll('.gantt path')]"
        ".reduce((sum, path) => sum + (path.getAttribute('d') || '').length, 0)"
    )
    began = time.perf_counter()
    page.get_by_label("FIFO").check()
    page.get_by_role("region", name="Policies").get_by_role("row", name="FIFO").wait_for()
    one_more_policy_s = time.perf_counter() - began
    longest_task_ms = max(page.evaluate("longTasks"), default=0.0)
    began = time.perf_counter()
    page.goto(f"{url}/?compare#compare?a={schedule_id}&b={schedule_id}")
    page.wait_for_selector(".gantt path[d^=M]")
    compare_s = time.perf_counter() - began
    context.close()
    return PageTimes(
        gradients=count,
        solve_s=solve_s,
        first_paint_s=paint / 1e3,
        chart_s=chart_s,
        one_more_policy_s=one_more_policy_s,
        compare_s=compare_s,
        longest_task_ms=longest_task_ms,
        long_tasks_while_panning=long_while_panning,
        shapes_bytes=shapes,
        median_frame_ms=frames[len(frames) // 2],
        longest_frame_ms=frames[-1],
    )


def main() -> None:
    """Measure both schedules and print them side by side."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_number("--gradients", 10_000, "number of gradients in the drawn profile")
    arguments = parser.parse_args()
    program = require_program("chromium-headless-shell", "chromium-headless-shell")
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        measure(browser, url, 100)  # what is loaded and compiled once is not the page's
        runs = [measure(browser, url, 101), measure(browser, url, arguments.gradients)]
        version = browser.version
        browser.close()
    print(f"Chromium {version} headless on {platform.machine()}, Python {platform.python_version()}")
    for name in PageTimes.__dataclass_fields__:
        small, large = (getattr(run, name) for run in runs)
        print(f"{name:18} {small:12.3f} {large:12.3f}   {large / small if small else 0:8.1f} times")
    write_json(arguments.json, {"runs": [asdict(run) for run in runs]})
