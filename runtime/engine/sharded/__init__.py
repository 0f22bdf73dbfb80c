"""Sharded plans: their reduce-scatters and all-gathers, and the order in which they are sent."""
