"""Compiled training with sharded parameters over shaped links."""

LABELS = {
    "pace": "PACE",
    "none": "no pass",
    "inductor": "Inductor's overlap pass",
    "buckets": "Inductor's buckets",
    "blocks": "a bucket for each block",
    "fsdp2": "FSDP2, not compiled",
}
"""Names of the contenders."""
