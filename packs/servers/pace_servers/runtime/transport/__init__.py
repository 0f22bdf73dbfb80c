"""Parameter servers as a transport: links that all ranks open together, and rounds repeated after a loss."""
