"""Compiled inner loops of the fabric. Arrays in, arrays out; what they mean is documented where they are called."""
