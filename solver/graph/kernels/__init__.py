"""Hot loops of the planner for graphs, compiled."""
