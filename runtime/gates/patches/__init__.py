"""The runtime's patches of torch itself; ``places`` lists them."""
