"""Weight synchronization: what is sent to whom, and the plan of it."""
