"""A browser, as the core's tests of the page have it."""

from tests.api.web.conftest import browser, visitor

__all__ = ["browser", "visitor"]
