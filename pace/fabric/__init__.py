"""The fabric: updates of many workers, and weights for them, over links of unequal and changing speed.

A vertical of its own: its documents, mathematics, planner, checker, simulation and commands. What runs it is
``pace.runtime.fabric``.
"""
