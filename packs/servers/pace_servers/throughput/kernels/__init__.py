"""Compiled loops of the simulation of asynchronous training."""
