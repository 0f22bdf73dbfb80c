"""The replica: what it receives of every batch, and by how much the server may lead it."""
