"""Transports: what carries segments between ranks, and the devices and clocks that they run by."""
