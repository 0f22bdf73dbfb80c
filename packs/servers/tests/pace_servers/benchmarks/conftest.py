"""Hosts, as the core's tests of the testbed have them."""

from tests.testbed.conftest import namespaces

__all__ = ["namespaces"]
