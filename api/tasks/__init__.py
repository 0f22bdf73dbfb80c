"""Tasks: the queue in the database, the dispatcher that runs them, and who waits for them."""
