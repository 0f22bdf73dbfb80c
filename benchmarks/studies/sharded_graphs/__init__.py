"""Plans of graphs of sharded training, priced by us and by torch's rules."""
