"""What tests do on the page: files, keys of the keyboard, and what they wait for."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import FilePayload, Page

from tests.api.process import Caller

LONG_NAME = "a training job of the vision team with a name that is as long as nobody would choose " * 2
_PATIENCE_S = 120.0
_FOCUSABLE = "a, :is(button, input, select, textarea):enabled, summary, [tabindex='0']"
# Whether something that a selector finds has a name.
_REACHABLE = """([name, selector]) => [...document.querySelectorAll(selector)].some((at) =>
    (at.getAttribute("aria-label") || at.labels?.[0]?.innerText || at.innerText || "").includes(name))"""


def choose(page: Page, label: str, *files: tuple[str, bytes]) -> None:
    """Choose files."""
    page.get_by_label(label).set_input_files(
        [
            FilePayload(name=name, mimeType="application/octet-stream", buffer=content)
            for name, content in files
        ]
    )


def drawn(page: Page) -> None:
    """Wait until there is a chart."""
    page.wait_for_selector(".gantt path[d^=M]")


def milliseconds(seconds: float) -> str:
    """Return a time as tables show it."""
    return f"{seconds * 1e3:.3f} ms"


def download(page: Page, button: str) -> bytes:
    """Press a button that saves a file; return the file."""
    with page.expect_download() as saved:
        page.get_by_role("button", name=button).click()
    return saved.value.path().read_bytes()


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Go through the page from the keyboard until something with this name has the focus."""
    # Keys are pressed faster than a busy machine draws what they are to reach.
    until(page, lambda: page.evaluate(_REACHABLE, [name, _FOCUSABLE]))
    for _ in range(150):
        page.keyboard.press(key)
        if page.evaluate(_REACHABLE, [name, ":focus"]):
            return
    raise AssertionError(f"{name} cannot be reached")


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait for what the page does not show."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def task_states(caller: Caller, kind: str) -> list[str]:
    """Return how far the tenant's tasks are, the newest first."""
    asked: dict[str, str | int] = {"kind": kind, "limit": 20}
    return [task["state"] for task in caller.http.get("/v1/tasks", params=asked).json()["items"]]


def report(made: dict[str, Any], measured_s: float) -> dict[str, Any]:
    """Return what a runtime reports of a schedule."""
    return {
        "job": made["job"],
        "fingerprint": made["fingerprint"],
        "profile_sha256": made["profile_sha256"],
        "predicted_iteration_s": made["schedule"]["predicted"]["iteration_s"],
        "measured_iteration_s": measured_s,
        "plain_iteration_s": 0.04,
        "num_iterations": 20,
    }
