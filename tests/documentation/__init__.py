"""The documentation is true: its examples run, and its tables are complete."""
