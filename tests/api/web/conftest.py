"""The page's tests: one browser a module, and a tenant of the service that all tests share."""

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser

from tests.api.process import Caller
from tests.api.web.chromium import Visitor, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one browser for a module's tests."""
    with chromium() as started:
        yield started


@pytest.fixture
def visitor(browser: Browser, service: Caller) -> Iterator[Visitor]:
    """Open a window that has the key of a new tenant."""
    with Visitor(browser, service.url, service.token) as made:
        yield made
