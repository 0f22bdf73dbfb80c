"""Measuring parameter servers."""
