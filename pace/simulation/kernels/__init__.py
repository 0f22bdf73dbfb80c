"""Compiled inner loops of the simulator."""
