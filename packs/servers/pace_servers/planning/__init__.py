"""Schedules of pushes and pulls: from a profile and a cluster to partitions, servers and proofs."""
