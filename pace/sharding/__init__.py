"""Schedules in two halves: reduce-scatters, updates of shards, all-gathers."""
