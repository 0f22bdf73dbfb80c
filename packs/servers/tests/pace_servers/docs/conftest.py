"""Programs that start quickly, as the core's documentation tests have them."""

from tests.documentation.conftest import programs

__all__ = ["programs"]
