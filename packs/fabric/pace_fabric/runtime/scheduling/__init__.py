"""The scheduler of a fabric: what it knows of hosts, links and updates, and what it orders."""
