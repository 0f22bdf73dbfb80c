"""Sharded plans, reduce-scatters and all-gathers: their groups and the order in which they are sent."""
