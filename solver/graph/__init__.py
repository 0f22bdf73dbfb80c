"""Collectives of a compiled program under a memory limit: what to fuse and when to issue it."""
