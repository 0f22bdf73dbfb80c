"""What every rank of a job enqueues, and whether it can hang."""
