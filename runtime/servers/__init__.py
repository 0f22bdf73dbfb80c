"""Parameter servers: the wire, the servers that sum or hold weights, and the workers' links to them."""
