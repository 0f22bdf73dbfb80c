"""Sharded plans: units, reduce-scatters and all-gathers, and the order in which they are sent."""
