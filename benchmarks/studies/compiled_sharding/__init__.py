"""Compiled training with sharded parameters over shaped links."""
