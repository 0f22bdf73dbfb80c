"""The command line: ``pace``, one module for each group of commands."""

from pace.cli.main import app

__all__ = ["app"]
