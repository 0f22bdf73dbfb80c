"""``pace sync``: weights from a trainer to its rollout engines."""
