"""Policies that decide when a graph's collectives are issued and what shares a bucket."""
