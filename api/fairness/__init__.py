"""Tenants share the service: limits, and whose turn it is, from the first byte of a request to its answer."""
