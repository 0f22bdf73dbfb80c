"""Studies that measure PACE, and the harness that they share; see ``benchmarks/README.md``."""
