"""Predicted throughput of asynchronous training beside what real systems reach."""
