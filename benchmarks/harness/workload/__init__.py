"""What is trained: profiles replayed as torch models, small models with real compute, their references."""
