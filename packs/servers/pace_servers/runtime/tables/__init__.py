"""Embedding tables on parameter servers: rows by key, and the optimizers that update them."""
