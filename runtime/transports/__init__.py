"""Transports, which carry segments between ranks, and the devices and clocks that they use."""
