"""Sums of gradients: what this rank contributes, what all ranks make of it, and what user code sees."""
