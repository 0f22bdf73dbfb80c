"""The mathematics: one machine, ready times, tails. Knows no profile and no document."""
