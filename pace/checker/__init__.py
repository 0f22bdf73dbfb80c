"""An independent judge of schedules: it shares no code with the solver. ``pace.kinds.check`` asks it.

Every number is derived again. Ready times and tails come from networkx's topological order, durations from
separate code for the formulas, the oracle's optimum from its dual (the strongest of all sets, docs/solver.md)
instead of from a schedule. Times agree when they differ by less than one part in 10^9 of the window.
"""
