"""Capture: records a training loop, measures the network and makes a profile of both."""
