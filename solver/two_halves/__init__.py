"""All-reduces in two halves: reduce-scatter, the update of a shard, all-gather; with and without a norm."""
