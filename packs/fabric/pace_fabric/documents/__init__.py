"""The fabric's documents: network, batch of updates, transfer plan, and scenario of a whole run."""
