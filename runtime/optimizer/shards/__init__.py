"""Updates in two halves: every rank sums, clips and updates a shard, and gathers the others'."""
