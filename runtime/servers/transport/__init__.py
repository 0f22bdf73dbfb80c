"""Parameter servers as a transport: links that all ranks open alike, and what is repeated after a loss."""
