"""Sharded schedules: reduce-scatters, updates of shards, all-gathers."""
