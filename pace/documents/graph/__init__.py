"""Documents of exchange "graph": a program of ops and collectives, and what a schedule says of it."""
