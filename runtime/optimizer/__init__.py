"""The wrapper of the user's optimizer: from a gradient's hook to the update of its parameter."""
