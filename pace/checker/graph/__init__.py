"""The judge of schedules of exchange "graph": order, times, memory and proofs, derived again."""
