"""Importing traces and logs that others recorded."""
