"""Weights on their way from a trainer to its rollout engines: plans, rivals, other links."""
