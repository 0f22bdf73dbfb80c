"""A real browser for the tests of the page: Debian's headless Chromium, and what must never happen in it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
# The machine may have much else to do.
TIMEOUT_MS = 120_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip the test where none is installed."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium-headless-shell)")
    expect.set_options(timeout=TIMEOUT_MS)
    playwright: Playwright
    with sync_playwright() as playwright:
        # Not in a sandbox: root may not make one. The pages are our own.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=TIMEOUT_MS
        )
        yield browser
        browser.close()


class Visitor:
    """One visitor's window: what it asks of other origins and what goes wrong in it is kept.

    Parameters
    ----------
    url
        Of the service, without a slash at the end.
    token
        The key with which the page is opened; None to be asked for one.
    options
        As for ``Browser.new_context``.
    """

    def __init__(self, browser: Browser, url: str, token: str | None = None, **options: Any) -> None:
        self.url = url
        self.faults: list[str] = []
        self._visits = 0
        self.tolerated: Callable[[str], bool] = lambda _: False
        settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "accept_downloads": True}
        self.context: BrowserContext = browser.new_context(**(settings | options))
        self.context.set_default_timeout(TIMEOUT_MS)
        if token is not None:
            self.context.add_init_script(
                f"sessionStorage.getItem('pace.key') ?? sessionStorage.setItem('pace.key', '{token}')"
            )
        self.page: Page = self.context.new_page()
        self.page.on(
            "console", lambda said: self._note(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self._note(f"{error}\n{error.stack}"))
        self.page.on(
            "request", lambda asked: self._note(f"asked {asked.url}") if self._is_foreign(asked.url) else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.context.close()
        if error is None and self.faults:
            raise AssertionError("\n".join(self.faults))

    def go(self, view: str = "start") -> Page:
        """Load the page anew at a view."""
        # Another address each time: where only what is behind "#" differs, nothing is loaded anew.
        self._visits += 1
        self.page.goto(f"{self.url}/?{self._visits}#{view}")
        return self.page

    def accessibility_faults(self, rules: list[str] | None = None) -> list[str]:
        """Return what axe-core finds serious or critical in the page as it is now, by some rules or all."""
        # Through the debugger, as the page's own policy lets no script in.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        # What the many rules that hold have looked at stays there.
        violations = self.page.evaluate(
            """async (rules) => {
                const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
                return (await axe.run(options)).violations;
            }""",
            rules,
        )
        return [
            f"{found['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for found in violations
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"]
        ]

    def _is_foreign(self, url: str) -> bool:
        return not url.startswith((f"{self.url}/", "blob:", "data:"))

    def _note(self, fault: str) -> None:
        # A question that is given up may end, or be asked again, just as its task is cancelled.
        if "status of 409" not in fault and not self.tolerated(fault):
            self.faults.append(fault)
