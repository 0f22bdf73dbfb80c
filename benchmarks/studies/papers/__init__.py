"""Figures of the papers that PACE builds on, in the simulator."""
