"""Contenders over parameter servers, for the testbed."""
