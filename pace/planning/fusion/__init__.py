"""Groups of gradients, whatever carries them: the problem, the search, the bounds. Worlds build on it."""
