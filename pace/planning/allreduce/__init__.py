"""Schedules of all-reduces: from a profile to groups, segments, predictions and proofs."""
