"""Plans of graphs: which collectives share a bucket and where in the program each is issued."""
