"""Groups whose members come and go: rounds with a quorum and a deadline, and state for newcomers."""
