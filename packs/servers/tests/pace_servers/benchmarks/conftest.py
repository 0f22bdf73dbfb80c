"""Hosts and a profile, as the core's tests of the testbed have them."""

from tests.testbed.conftest import layered, namespaces, ports, two_hosts

__all__ = ["layered", "namespaces", "ports", "two_hosts"]
