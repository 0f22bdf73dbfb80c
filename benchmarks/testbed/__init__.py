"""A real network on one Linux machine, real peers on it, measured side by side: see docs/testbed.md.

Hosts are network namespaces behind shaped links (``hosts``), a workload is a profile replayed as a torch
model (``replay``), contenders are DDP, Horovod and PACE as users run them (``contenders``).
"""
