"""Streaming DiLoCo: plans of outer steps, other rules for them, and the bandwidth that they need."""
