"""Hosts on one Linux machine (network namespaces behind shaped links), and processes on them."""
