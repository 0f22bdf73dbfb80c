"""Sums of gradients: this rank's contributions, their reduction over all ranks, and user code's access."""
