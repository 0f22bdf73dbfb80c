"""From a profile to its schedule: one entry point, a search for groups, and a planner for each exchange."""
