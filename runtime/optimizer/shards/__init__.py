"""Sharded updates: every rank sums, clips and updates its shard, then gathers the shards of the others."""
