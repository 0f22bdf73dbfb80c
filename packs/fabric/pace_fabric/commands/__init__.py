"""``pace fabric``: transfers planned, checked, simulated and run."""
