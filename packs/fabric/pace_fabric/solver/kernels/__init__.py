"""Compiled inner loops. Arrays in, arrays out; what they mean is documented where they are called."""
