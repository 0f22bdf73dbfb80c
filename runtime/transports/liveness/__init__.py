"""Signs of life of ranks: which rank is lost, late or gone when training stalls or fails."""
