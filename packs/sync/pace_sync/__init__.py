"""Weights for rollout engines, and streaming DiLoCo, sent as planned, over the links of a fabric."""
